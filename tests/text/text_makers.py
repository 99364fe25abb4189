"""Small tokenizers for the tests of text/, written as the files that users have."""

import json
from pathlib import Path

from gguf import GGUFWriter
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

SPECIALS = ("<pad>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "i n", "e r", "a n", "Ġ t", "Ġ a", "th e", "in g", "Ġt h")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PIECES = (
    "▁",
    "h",
    "e",
    "l",
    "o",
    "▁h",
    "he",
    "ll",
    "lo",
    "▁he",
    "llo",
    "▁hello",
    "hello",
    "a",
    "b",
)


def byte_words() -> list[str]:
    """The vocabulary of byte-level BPE: special tokens, one token per byte, and merged ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*SPECIALS, *alphabet, *(merge.replace(" ", "") for merge in MERGES)]


def make_byte_level() -> Tokenizer:
    """Return a byte-level BPE tokenizer with three special tokens."""
    vocabulary = {word: index for index, word in enumerate(byte_words())}
    raw = Tokenizer(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in MERGES]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(list(SPECIALS))
    return raw


def make_folder(folder: Path, *, adds_bos: bool = False, **config: object) -> Path:
    """Write a Hugging Face folder; `config` goes into tokenizer_config.json."""
    raw = make_byte_level()
    raw.add_tokens([AddedToken("<tool>", normalized=False)])
    if adds_bos:
        raw.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
    raw.save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHATML}
    named = {"pad_token": SPECIALS[0], "bos_token": SPECIALS[1], "eos_token": SPECIALS[2]}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts | named | config))
    return folder


def make_gguf(path: Path, facts: dict[str, object]) -> Path:
    """Write a GGUF file with nothing but metadata; the keys go without "tokenizer."."""
    writer = GGUFWriter(path, "llama")
    for key, value in facts.items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}
        add.get(type(value), writer.add_array)(f"tokenizer.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_level_facts(pre: str | None = "gpt-2", **changes: object) -> dict[str, object]:
    """Return the metadata of `make_byte_level`."""
    words = byte_words()
    facts = {
        "ggml.model": "gpt2",
        "ggml.tokens": words,
        "ggml.token_type": [3] * 3 + [1] * (len(words) - 3),
        "ggml.merges": list(MERGES),
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "chat_template": CHATML,
    }
    named = {"ggml.pre": pre} if pre else {}
    return facts | named | {key.replace("__", "."): value for key, value in changes.items()}


def sentencepiece_facts(**changes: object) -> dict[str, object]:
    """Return the metadata of a sentencepiece vocabulary with byte tokens and a few pieces."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens, "<think>", *PIECES]
    facts = {
        "ggml.model": "llama",
        "ggml.tokens": tokens,
        "ggml.token_type": [2, 3, 3, *[6] * 256, 4, *[1] * len(PIECES)],
        "ggml.scores": [0.0] * 260 + [float(len(piece)) for piece in PIECES],
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "ggml.unknown_token_id": 0,
    }
    return facts | {key.replace("__", "."): value for key, value in changes.items()}
