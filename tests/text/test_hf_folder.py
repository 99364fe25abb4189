import json

import pytest
from text_makers import CHATML, MERGES, byte_words, make_folder

from paged_jax.config import ModelError
from paged_jax.text.tokenizer import Tokenizer

TEXTS = [
    " leading",
    "  two",
    "\ttab\tbed",
    "12345 6.78",
    "line\n\nline",
    "é ü ß",
    "<|im_start|>user",
    "the thing<|im_end|>b",
    "a<tool>b <extra> <named>",
    "😀👩‍🚀",
    "trailing ",
    "",
]
CHANGES = {
    "plain": {},
    "bos": {"add_bos_token": True},
    "no bos": {"add_bos_token": False},
    "eos": {"add_bos_token": True, "add_eos_token": True},
    "named": {"unk_token": "<named>", "additional_special_tokens": ["<extra>"]},
    "declared": {
        "added_tokens_decoder": {
            "269": {"content": "<tool>", "special": False, "normalized": False},
            "270": {"content": "<extra>", "special": True, "normalized": False},
        }
    },
}


@pytest.mark.parametrize("adds_bos", [True, False], ids=["adds bos", "adds nothing"])
@pytest.mark.parametrize("changes", CHANGES)
def test_ids_equal_transformers(tmp_path, changes, adds_bos):
    from transformers import AutoTokenizer

    folder = make_folder(tmp_path, adds_bos=adds_bos, **CHANGES[changes])
    reference, tokenizer = AutoTokenizer.from_pretrained(folder), Tokenizer.from_folder(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text), text
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids, skip_special_tokens=False) == reference.decode(ids)


def test_older_special_tokens_map_is_read(tmp_path):
    from transformers import AutoTokenizer

    folder = make_folder(tmp_path)
    named = {"content": "<named>", "lstrip": True, "normalized": False, "rstrip": False}
    (folder / "special_tokens_map.json").write_text(json.dumps({"unk_token": named}))
    reference, tokenizer = AutoTokenizer.from_pretrained(folder), Tokenizer.from_folder(folder)
    assert tokenizer.encode("a <named> b") == reference.encode("a <named> b")
    assert tokenizer.named_tokens["unk_token"] == "<named>"
    assert max(tokenizer.special_ids) == tokenizer.size - 1


def test_settings_for_batches_are_ignored(tmp_path):
    folder = make_folder(tmp_path)
    facts = json.loads((folder / "tokenizer.json").read_text())
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    facts["truncation"] = cut
    (folder / "tokenizer.json").write_text(json.dumps(facts))
    assert len(Tokenizer.from_folder(folder).encode("a b c d")) > 2


def test_template_file_wins_over_the_configuration(tmp_path):
    folder = make_folder(tmp_path)
    (folder / "chat_template.jinja").write_text("FILE")
    assert Tokenizer.from_folder(folder).chat_template == "FILE"


def test_named_templates_are_told_apart(tmp_path):
    named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": "TOOLS"}]
    tokenizer = Tokenizer.from_folder(make_folder(tmp_path, chat_template=named))
    chat = [{"role": "user", "content": "Hi"}]
    assert tokenizer.chat_template == CHATML
    assert tokenizer.render_chat(chat, tools=[{"name": "f"}]) == "TOOLS"


def test_additional_template_files_are_read(tmp_path):
    folder = make_folder(tmp_path)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("TOOLS")
    assert Tokenizer.from_folder(folder).templates == {"default": CHATML, "tool_use": "TOOLS"}


def test_older_files_are_converted(tmp_path):
    words = {word: index for index, word in enumerate(byte_words())}
    (tmp_path / "vocab.json").write_text(json.dumps(words))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    facts = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|im_end|>", "unk_token": "<pad>"}
    facts |= {"bos_token": "<|im_start|>", "chat_template": CHATML}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(facts))
    converted, expected = (
        Tokenizer.from_folder(tmp_path),
        Tokenizer.from_folder(make_other(tmp_path)),
    )
    for text in TEXTS[:8]:
        assert converted.encode(text) == expected.encode(text)
    assert (converted.bos_id, converted.eos_id, converted.chat_template) == (1, 2, CHATML)


def make_other(tmp_path):
    (tmp_path / "other").mkdir()
    return make_folder(tmp_path / "other")


def test_folder_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelError, match=r"holds no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_code_of_a_folder_is_not_run(tmp_path):
    marker = tmp_path / "marker"
    (tmp_path / "tokenizer.py").write_text(f"open({str(marker)!r}, 'w')\n")
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "unheard", "auto_map": {"AutoTokenizer": ["tokenizer.X", None]}})
    )
    facts = {"tokenizer_class": "X", "auto_map": {"AutoTokenizer": ["tokenizer.X", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(facts))
    with pytest.raises(ModelError, match="cannot be converted"):
        Tokenizer.from_folder(tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{}", "is no tokenizer"),
        ("tokenizer.json", "{", "is no tokenizer"),
        ("tokenizer_config.json", "{", "is no JSON"),
        ("tokenizer_config.json", "[]", "must hold a JSON object"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"1": {}}}', "is malformed"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}', "is malformed"),
        ("tokenizer_config.json", '{"chat_template": [1]}', "is malformed"),
    ],
)
def test_broken_file_is_refused_by_name(tmp_path, name, content, message):
    folder = make_folder(tmp_path)
    (folder / name).write_text(content)
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_folder(folder)


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(ModelError, match="is no folder"):
        Tokenizer.from_folder(tmp_path / "missing")
