"""What a tokenizer is made of, and the bytes that its tokens stand for.

Two spellings are known: byte-level BPE's (every byte has a printable character, a space is "Ġ") and
sentencepiece's (a space is "▁", a byte without a piece is "<0x0A>").
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from paged_jax.config import ModelError

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class TokenizerParts:
    """A tokenizer as its files describe it.

    Attributes:
        named_tokens: "bos_token", "eos_token", ... -> the token's text.
        templates: chat templates by name; the usual one is "default".
    """

    raw: tokenizers.Tokenizer
    named_tokens: Mapping[str, str]
    templates: Mapping[str, str]


@dataclass(frozen=True)
class Spelling:
    """How a vocabulary writes bytes.

    Attributes:
        to_bytes: the bytes of a token, given its text in the vocabulary.
        strips_first_space: decoding drops one space at the start of a text.
    """

    to_bytes: Callable[[str], bytes]
    strips_first_space: bool


def byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of byte-level BPE; unprintable bytes follow U+0100."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


def byte_parts() -> TokenizerParts:
    """Return a byte-level tokenizer without merges: id = byte."""
    raw = tokenizers.Tokenizer(models.BPE(byte_alphabet(), []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    return TokenizerParts(raw, {}, {})


def spelling_of(raw: tokenizers.Tokenizer) -> Spelling:
    """Return how `raw` writes bytes, read from its decoder.

    Raises:
        ModelError: the decoder is neither byte-level nor sentencepiece's.
    """
    steps = _decoder_steps(raw)
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return Spelling(partial(_byte_level, byte_alphabet()), strips_first_space=False)
    if any(_reads_space_mark(step) for step in steps):
        to_bytes = partial(_sentencepiece, has_bytes="ByteFallback" in kinds)
        return Spelling(to_bytes, strips_first_space=any(map(_strips_space, steps)))
    raise ModelError(
        f"the tokenizer's decoder is {', '.join(sorted(kinds)) or 'missing'}; "
        "supported are ByteLevel and sentencepiece's (Metaspace, or Replace with ByteFallback)"
    )


def _reads_space_mark(step: Mapping[str, Any]) -> bool:
    return "▁" in (step.get("replacement"), (step.get("pattern") or {}).get("String"))


def _strips_space(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return step.get("prepend_scheme", "always") != "never"
    return step["type"] == "Strip" and step["start"] > 0


def add_borders(raw: tokenizers.Tokenizer, *, bos: str | None, eos: str | None) -> None:
    """Let `raw` put `bos` before and `eos` behind every plain prompt; None puts nothing."""
    single = [f"{token}:0" for token in (bos, "$A", eos) if token is not None]
    ids = [(token, raw.token_to_id(token)) for token in (bos, eos) if token is not None]
    raw.post_processor = TemplateProcessing(single=single, special_tokens=ids)


def _decoder_steps(raw: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if raw.decoder is None:
        return []
    state = json.loads(raw.decoder.__getstate__())
    return state["decoders"] if state["type"] == "Sequence" else [state]


def _byte_level(alphabet: Mapping[str, int], token: str) -> bytes:
    """The rule of the decoder: a token with a character outside the alphabet is plain text."""
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()


def _sentencepiece(token: str, *, has_bytes: bool) -> bytes:
    byte = BYTE_PIECE.fullmatch(token) if has_bytes else None
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
