import threading

import pytest
from text_makers import CHATML, make_folder, make_gguf, sentencepiece_facts

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.text.tokenizer import Tokenizer

CHAT = [{"role": "user", "content": "the thing"}]


@pytest.fixture
def folder(tmp_path) -> Tokenizer:
    return Tokenizer.from_folder(make_folder(tmp_path))


@pytest.fixture
def sentencepiece(tmp_path) -> Tokenizer:
    return Tokenizer.from_gguf(make_gguf(tmp_path / "m.gguf", sentencepiece_facts()))


@pytest.mark.parametrize("text", ["a\ud800", "\udc00", "\ude00\ud83d"])
def test_unpaired_surrogate_is_an_invalid_request(folder, text):
    with pytest.raises(InvalidRequest, match="unpaired surrogate") as refusal:
        folder.encode(text)
    assert refusal.value.param == "prompt"


def test_text_of_special_tokens_becomes_their_ids(folder):
    assert folder.encode("<|im_start|>") == [1]
    assert folder.encode("<|im_end|>t")[0] == 2


@pytest.mark.parametrize(
    "text", ["", " leading", "two  spaces ", "\t\r\n", "🌶 ďไ 龘", "don 't , ."]
)
def test_decoding_gives_the_text_back(smollm, text):
    assert smollm.decode(smollm.encode(text)) == text


def test_token_texts_and_bytes_join_to_the_text(smollm):
    text = "The capital of France is Paris.\n\tnaïve 🌶ďไ <|im_end|>"
    ids = smollm.encode(text)
    assert b"".join(map(smollm.token_bytes, ids)) == text.encode()
    assert [smollm.token_text(token) for token in ids[:3]] == ["The", " capital", " of"]


def test_part_of_a_character_keeps_its_bytes(smollm):
    ids = smollm.encode("🌶")
    assert [smollm.token_bytes(token) for token in ids] == [b"\xf0\x9f", b"\x8c", b"\xb6"]
    assert {smollm.token_text(token) for token in ids} == {"\ufffd"}


def test_token_text_is_the_decoded_text_of_every_token(smollm):
    for token in range(smollm.size):
        assert smollm.token_text(token) == smollm.decode([token], skip_special_tokens=False)


def test_sentencepiece_tokens_have_real_bytes(sentencepiece):
    ids = sentencepiece.encode("hello\né", add_special_tokens=False)
    parts = [b" hello", b"\n", b"\xc3", b"\xa9"]
    assert [sentencepiece.token_bytes(token) for token in ids] == parts


@pytest.mark.parametrize("token", [-1, 10**6, 2**40])
def test_id_without_a_token_has_no_text(folder, token):
    assert not folder.has(token)
    assert (folder.token_bytes(token), folder.token_text(token)) == (b"", "")


def test_size_counts_added_tokens(folder):
    (tool,) = folder.encode("<tool>")
    assert folder.size == tool + 1
    assert folder.has(tool)
    assert folder.special_ids == frozenset({0, 1, 2})
    assert (folder.bos_id, folder.eos_id, folder.chat_template) == (1, 2, CHATML)


@pytest.mark.parametrize("adds_bos", [True, False])
def test_templated_text_gets_no_second_bos(tmp_path, adds_bos):
    tokenizer = Tokenizer.from_folder(make_folder(tmp_path, adds_bos=adds_bos))
    ids = tokenizer.encode_chat(CHAT)
    assert ids == tokenizer.encode(tokenizer.render_chat(CHAT), add_special_tokens=False)
    assert ids[:2] != [1, 1]
    assert (tokenizer.encode("the")[0] == 1) is adds_bos


def test_given_template_and_variables_are_used(folder):
    text = folder.render_chat(CHAT, template="{{ bos_token }}{{ x }}", variables={"x": 7})
    assert text == "<|im_start|>7"


def test_chat_can_be_continued(folder):
    chat = [*CHAT, {"role": "assistant", "content": "the"}]
    flags = {"add_generation_prompt": False, "continue_final_message": True}
    assert folder.render_chat(chat, **flags).endswith("<|im_start|>assistant\nthe")
    assert folder.encode_chat(chat, **flags)[-1] == folder.encode("the")[-1]


def test_chat_without_a_template_is_refused(tmp_path):
    tokenizer = Tokenizer.from_folder(make_folder(tmp_path, chat_template=None))
    assert tokenizer.chat_template is None
    with pytest.raises(InvalidRequest, match="no chat template"):
        tokenizer.encode_chat(CHAT)


def test_threads_may_share_a_tokenizer(smollm):
    text = "One text for everybody: naïve 🌶 12345. " * 50
    expected, found = smollm.encode(text), []

    def work():
        ids = smollm.encode(text)
        found.append((ids, b"".join(map(smollm.token_bytes, ids)).decode()))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(expected, text)] * 8
