import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from paged_jax.config import ModelError
from paged_jax.text.vocabulary import byte_alphabet, spelling_of


def make_decoding(decoder: decoders.Decoder | None) -> Tokenizer:
    raw = Tokenizer(models.BPE())
    if decoder is not None:
        raw.decoder = decoder
    return raw


def test_byte_alphabet_is_the_librarys():
    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert byte_alphabet()["Ġ"] == ord(" ")


def test_byte_level_tokens_are_spelled_back():
    to_bytes = spelling_of(make_decoding(decoders.ByteLevel())).to_bytes
    assert to_bytes("Ġthe") == b" the"
    assert to_bytes("ðŁ") == b"\xf0\x9f"
    assert to_bytes("<｜a b｜>") == "<｜a b｜>".encode()


@pytest.mark.parametrize(
    ("decoder", "strips"),
    [
        (decoders.Metaspace(), True),
        (decoders.Metaspace(prepend_scheme="never"), False),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()]), False),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)]), True),
    ],
)
def test_sentencepiece_decoders_are_recognised(decoder, strips):
    spelling = spelling_of(make_decoding(decoder))
    assert spelling.to_bytes("▁the") == b" the"
    assert spelling.strips_first_space is strips


@pytest.mark.parametrize("falls_back", [True, False])
def test_byte_tokens_are_bytes_only_with_byte_fallback(falls_back):
    steps = [decoders.Replace("▁", " "), *[decoders.ByteFallback()] * falls_back]
    spelling = spelling_of(make_decoding(decoders.Sequence(steps)))
    assert spelling.to_bytes("<0x0A>") == (b"\n" if falls_back else b"<0x0A>")


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.Replace("_", " ")])
def test_other_decoders_are_refused(decoder):
    with pytest.raises(ModelError, match="supported are ByteLevel and sentencepiece's"):
        spelling_of(make_decoding(decoder))
