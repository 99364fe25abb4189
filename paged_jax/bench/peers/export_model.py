"""The default model's GGUF file for peers: `export_model.py folder|gguf SOURCE TARGET`.

A Hugging Face folder in bfloat16, or the same file with every quantised tensor rounded to bfloat16.
Runs in a peer's environment; the folder needs transformers, the file only gguf.
"""

import json
import sys
from pathlib import Path

import gguf

DIGITS = {"type": "Digits", "individual_digits": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def to_folder(source, target):
    """Write the folder. transformers cannot save a model read from GGUF, so one is filled."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers import LlamaConfig, LlamaForCausalLM

    folder, name = str(source.parent), source.name
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    sizes += ("num_attention_heads", "num_key_value_heads")
    config = LlamaConfig(
        **{size: getattr(read.config, size) for size in sizes}, head_dim=64, hidden_act="silu",
        max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict(), strict=False)
    model.tie_weights()
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    model.to(torch.bfloat16).save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(target)
    complete(target)


def complete(target):
    """Put back what transformers' reader loses, and what older readers look for."""
    change(target / "config.json", rope_theta=100000.0, torch_dtype="bfloat16")
    split = {"type": "Sequence", "pretokenizers": [DIGITS, BYTES]}  # of the pre-tokenizer "smollm"
    change(target / "tokenizer.json", pre_tokenizer=split, post_processor=None)
    change(
        target / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast",
        model_max_length=8192, add_prefix_space=False, clean_up_tokenization_spaces=False,
        chat_template=(target / "chat_template.jinja").read_text(),
    )  # fmt: skip


def change(path, **values):
    """Change some keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values, ensure_ascii=False, indent=1))


def to_gguf(source, target):
    """Write the file; norms stay float32."""
    reader = gguf.GGUFReader(source)
    fields = reader.fields
    writer = gguf.GGUFWriter(target, fields["general.architecture"].contents())
    for name, field in fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    kind = gguf.GGMLQuantizationType.BF16
    for tensor in reader.tensors:
        if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(tensor.name, tensor.data)
        else:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            rounded = gguf.quants.quantize(values, kind)
            writer.add_tensor(tensor.name, rounded, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    {"folder": to_folder, "gguf": to_gguf}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
