import random

import pytest
from text_makers import make_gguf, sentencepiece_facts

from paged_jax.text.detokenizer import Detokenizer
from paged_jax.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def pools(smollm) -> list[list[int]]:
    """Ids to draw from: all, parts of characters, special ones among parts of characters."""
    parts = [token for token in range(smollm.size) if "\ufffd" in smollm.token_text(token)]
    return [list(range(smollm.size)), parts, [*parts, *sorted(smollm.special_ids) * 10]]


@pytest.fixture
def sentencepiece(tmp_path) -> Tokenizer:
    return Tokenizer.from_gguf(make_gguf(tmp_path / "m.gguf", sentencepiece_facts()))


def stream(tokenizer: Tokenizer, prompt: list[int], ids: list[int], **flags: bool) -> list[str]:
    """The text that each token releases, and that of the end."""
    detokenizer = Detokenizer(tokenizer, prompt, **flags)
    return [*(detokenizer.push([token]) for token in ids), detokenizer.flush()]


@pytest.mark.parametrize("skip", [True, False])
def test_joined_text_equals_decode_for_any_ids(smollm, pools, skip):
    rng = random.Random(0)
    for number in range(2000):
        ids = rng.choices(pools[number % len(pools)], k=64)
        text = "".join(stream(smollm, [1], ids, skip_special_tokens=skip))
        assert text == smollm.decode(ids, skip_special_tokens=skip), ids


def test_joined_text_does_not_depend_on_how_many_tokens_are_pushed_at_once(smollm, pools):
    ids = random.Random(1).choices(pools[1], k=300)
    detokenizer = Detokenizer(smollm, [])
    assert detokenizer.push(ids) + detokenizer.flush() == smollm.decode(ids)


def test_character_appears_with_its_last_token(smollm):
    ids = smollm.encode("🌶")
    assert len(ids) == 3
    assert stream(smollm, [1], ids) == ["", "", "🌶", ""]


def test_unfinished_character_becomes_a_replacement_at_the_end(smollm):
    assert stream(smollm, [1], smollm.encode("a🌶")[:-1])[-1] == "\ufffd"


@pytest.mark.parametrize("tail", ["🌶", "👩‍🚀", "ไ", "龘"])
def test_prompt_that_ends_inside_a_character_is_not_repeated(smollm, tail):
    ids = smollm.encode("Hello world " + tail)
    for cut in range(1, len(ids)):
        text = "".join(stream(smollm, ids[:cut], smollm.encode(" and so on")))
        assert text == " and so on"


def test_unknown_ids_add_nothing(smollm):
    assert "".join(stream(smollm, [1], [-1, smollm.size, 10**9])) == ""


def test_special_tokens_show_only_when_asked(smollm):
    assert "".join(stream(smollm, [1], [1, 2])) == ""
    shown = stream(smollm, [1], [1, 2], skip_special_tokens=False)
    assert shown == ["<|im_start|>", "<|im_end|>", ""]


def test_sentencepiece_keeps_the_space_between_prompt_and_answer(sentencepiece):
    prompt = sentencepiece.encode("hello")
    answer = sentencepiece.encode("hello", add_special_tokens=False)
    assert "".join(stream(sentencepiece, prompt, answer)) == " hello"


def test_sentencepiece_drops_the_space_at_the_start_of_a_text(sentencepiece):
    answer = sentencepiece.encode("hello hello", add_special_tokens=False)
    assert "".join(stream(sentencepiece, [1], answer)) == "hello hello"
    assert sentencepiece.decode(answer) == "hello hello"


def test_sentencepiece_byte_tokens_join_to_characters(sentencepiece):
    answer = sentencepiece.encode("龘", add_special_tokens=False)
    pieces = stream(sentencepiece, sentencepiece.encode("a"), answer)
    assert pieces == [" ", "", "", "龘", ""]


def test_sentencepiece_never_fails_on_random_ids(sentencepiece):
    rng = random.Random(0)
    for _ in range(500):
        ids = rng.choices(range(sentencepiece.size), k=32)
        assert "".join(stream(sentencepiece, [1], ids)).encode()
