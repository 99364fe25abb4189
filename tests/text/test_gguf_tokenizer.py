import gzip
import json
from pathlib import Path

import pytest
from text_makers import byte_level_facts, make_byte_level, make_gguf, sentencepiece_facts
from tokenizers import Regex, pre_tokenizers

from paged_jax.config import ModelError
from paged_jax.text.gguf_tokenizer import read_gguf
from paged_jax.text.tokenizer import Tokenizer

# As the models' own tokenizer.json files have them.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="module")
def golden() -> list[dict]:
    """Texts and the ids that llama.cpp gives them, for the default model's file."""
    path = Path(__file__).parent / "golden" / "smollm2.jsonl.gz"
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def make(tmp_path: Path, facts: dict[str, object]) -> Tokenizer:
    return Tokenizer.from_gguf(make_gguf(tmp_path / "m.gguf", facts))


def split_and_spell(pattern: str) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])


OFFICIAL = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "qwen2": split_and_spell(QWEN2),
    "llama-bpe": split_and_spell(LLAMA3),
}


def test_ids_equal_llama_cpp_for_2000_texts(smollm, golden):
    wrong = [row["text"] for row in golden if smollm.encode(row["text"]) != row["ids"]]
    assert len(golden) == 2000
    assert wrong == []


def test_default_model_has_its_special_tokens_and_template(smollm):
    assert (smollm.bos_id, smollm.eos_id, smollm.size) == (1, 2, 49152)
    assert smollm.special_ids == frozenset(range(17))
    assert smollm.encode("<|im_start|>") == [1]
    assert smollm.render_chat([{"role": "user", "content": "Hi"}]).endswith(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("pre", OFFICIAL)
def test_words_equal_those_of_the_official_rule(tmp_path, golden, pre):
    raw = read_gguf(make_gguf(tmp_path / "m.gguf", byte_level_facts(pre))).raw
    for row in golden[:500]:
        expected = OFFICIAL[pre].pre_tokenize_str(row["text"])
        assert raw.pre_tokenizer.pre_tokenize_str(row["text"]) == expected


def test_default_rule_cuts_punctuation_and_threes_of_digits(tmp_path):
    raw = read_gguf(make_gguf(tmp_path / "m.gguf", byte_level_facts(pre=None))).raw
    words = [word for word, _ in raw.pre_tokenizer.pre_tokenize_str("a $12345, it's")]
    assert words == ["a", "Ġ", "$", "123", "45", ",", "Ġit", "'", "s"]


def test_byte_level_ids_equal_the_tokenizer_they_were_written_from(tmp_path, golden):
    tokenizer, raw = make(tmp_path, byte_level_facts()), make_byte_level()
    for row in golden[:300]:
        assert tokenizer.encode(row["text"]) == raw.encode(row["text"]).ids


def test_qwen2_composes_characters(tmp_path):
    tokenizer = make(tmp_path, byte_level_facts("qwen2"))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")


def test_unknown_word_rule_is_refused_by_name(tmp_path):
    with pytest.raises(ModelError, match=r"m\.gguf: tokenizer\.ggml\.pre is 'tekken'; supported"):
        make(tmp_path, byte_level_facts("tekken"))


def test_unknown_model_is_refused_by_name(tmp_path):
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.model is 'bert'"):
        make(tmp_path, byte_level_facts(ggml__model="bert"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ggml__merges": ["t q#", "zz yy"]}, "cannot be built"),
        ({"ggml__bos_token_id": 10**6}, "bos_token_id is 1000000; its vocabulary has"),
        ({"ggml__token_type": [1, 1]}, "cannot be built"),
        ({"ggml__tokens": "words"}, "tokens is no array of str"),
    ],
)
def test_broken_vocabulary_is_refused_with_the_key(tmp_path, changes, message):
    with pytest.raises(ModelError, match=message):
        make(tmp_path, byte_level_facts(**changes))


@pytest.mark.parametrize(
    ("pre", "changes", "begins"),
    [
        ("gpt-2", {}, False),
        ("gpt-2", {"ggml__add_bos_token": True}, True),
        ("llama-bpe", {}, True),
        ("llama-bpe", {"ggml__add_bos_token": False}, False),
    ],
)
def test_bos_is_added_as_the_file_or_its_rule_says(tmp_path, pre, changes, begins):
    tokenizer = make(tmp_path, byte_level_facts(pre, **changes))
    assert (tokenizer.encode("the")[0] == 1) is begins
    assert tokenizer.encode("the", add_special_tokens=False)[0] != 1


def test_eos_is_added_where_the_file_says(tmp_path):
    tokenizer = make(tmp_path, byte_level_facts(ggml__add_eos_token=True))
    assert tokenizer.encode("the")[-1] == 2


def test_padding_has_no_token_and_user_tokens_are_not_special(tmp_path):
    facts = byte_level_facts()
    facts["ggml.tokens"] = [*facts["ggml.tokens"], "<tool>", "[PAD1]"]
    facts["ggml.token_type"] = [*facts["ggml.token_type"], 4, 5]
    tokenizer = make(tmp_path, facts)
    (tool,) = tokenizer.encode("<tool>")
    assert tool not in tokenizer.special_ids
    assert tokenizer.decode([tool]) == "<tool>"
    assert tokenizer.size == tool + 1
    assert not tokenizer.has(tool + 1)


def test_templates_are_read_by_name(tmp_path):
    tokenizer = make(tmp_path, byte_level_facts(chat_template__tool_use="TOOLS"))
    messages = [{"role": "user", "content": "the"}]
    assert tokenizer.render_chat(messages, tools=[{"name": "f"}]) == "TOOLS"
    assert tokenizer.render_chat(messages).startswith("<|im_start|>user")


def spell(tokenizer: Tokenizer, text: str) -> list[str]:
    tokens = sentencepiece_facts()["ggml.tokens"]
    return [tokens[token] for token in tokenizer.encode(text, add_special_tokens=False)]


def test_sentencepiece_merges_by_score(tmp_path):
    tokenizer = make(tmp_path, sentencepiece_facts())
    assert spell(tokenizer, "hello hell") == ["▁hello", "▁he", "ll"]


def test_sentencepiece_begins_with_bos_and_a_space(tmp_path):
    tokenizer = make(tmp_path, sentencepiece_facts())
    assert tokenizer.encode("hello")[0] == 1
    assert spell(tokenizer, "h") == ["▁h"]


def test_sentencepiece_adds_no_space_where_the_file_says_so(tmp_path):
    tokenizer = make(tmp_path, sentencepiece_facts(ggml__add_space_prefix=False))
    assert spell(tokenizer, "hello hello") == ["hello", "▁hello"]
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_sentencepiece_falls_back_to_bytes(tmp_path):
    tokenizer = make(tmp_path, sentencepiece_facts())
    assert spell(tokenizer, "é\n") == ["▁", "<0xC3>", "<0xA9>", "<0x0A>"]


@pytest.mark.parametrize("text", ["hello hello", "a\n\tb", "龘 🌶 é", "  two  spaces  ", "<0x41>"])
def test_sentencepiece_round_trip(tmp_path, text):
    tokenizer = make(tmp_path, sentencepiece_facts())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sentencepiece_prefixes_the_text_behind_a_special_token(tmp_path):
    tokenizer = make(tmp_path, sentencepiece_facts())
    assert spell(tokenizer, "h</s>h<think>h") == ["▁h", "</s>", "▁h", "<think>", "▁h"]
    assert tokenizer.special_ids == frozenset({0, 1, 2})


def test_sentencepiece_without_scores_is_refused(tmp_path):
    facts = sentencepiece_facts()
    del facts["ggml.scores"]
    with pytest.raises(ModelError, match=r"needs tokenizer\.ggml\.scores"):
        make(tmp_path, facts)
