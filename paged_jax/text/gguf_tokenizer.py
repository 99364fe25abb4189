"""Rebuilds a tokenizer from the metadata of a GGUF file.

Two kinds exist: "gpt2", byte-level BPE, whose rule for cutting text into words is named by
`tokenizer.ggml.pre`; and "llama", sentencepiece, whose merges follow from its pieces' scores.
Source of the rules: llama.cpp's `llama-vocab.cpp`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from paged_jax.config import ModelError
from paged_jax.gguf_header import Value, read_header
from paged_jax.text.vocabulary import TokenizerParts, add_borders

# tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
NAMED_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
PREFIX = "tokenizer.ggml."

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_WORDS = QWEN2_WORDS.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)


@dataclass(frozen=True)
class WordRule:
    """How byte-level BPE cuts a text before it merges.

    Attributes:
        patterns: applied in order, each to the pieces of the one before.
        normalizer: applied to the text first.
        adds_bos: whether plain prompts begin with BOS where the file does not say.
        ignore_merges: a word that is a token stays whole, whatever the merges say.
    """

    patterns: tuple[str, ...]
    normalizer: Callable[[], normalizers.Normalizer] | None = None
    adds_bos: bool = False
    ignore_merges: bool = False


WORD_RULES = {
    "default": WordRule((r"[\p{P}\$\+<=>\^~\|]+", GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": WordRule((GPT2_WORDS,)),
    "smollm": WordRule((r"\p{N}", GPT2_WORDS)),
    "qwen2": WordRule((QWEN2_WORDS,), normalizer=normalizers.NFC),
    "llama-bpe": WordRule((LLAMA3_WORDS,), adds_bos=True, ignore_merges=True),
}


Metadata = Mapping[str, Value]


def read_gguf(path: Path) -> TokenizerParts:
    """Return the tokenizer that a GGUF file describes.

    Raises:
        ModelError: the file is broken, holds no tokenizer, or one that is not supported.
    """
    try:
        return _build(read_header(path).metadata)
    except _Unusable as error:
        raise ModelError(f"{path}: {error}") from None


class _Unusable(ValueError):
    """The metadata holds no tokenizer that can be built; the message names the key."""


def _build(metadata: Metadata) -> TokenizerParts:
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise _Unusable(f"tokenizer.ggml.model is {kind!r}; supported are 'gpt2' and 'llama'")
    vocabulary = _Vocabulary.of(metadata)
    rule = _word_rule(metadata) if kind == "gpt2" else None
    try:
        raw = _byte_level(vocabulary, rule) if rule else _sentencepiece(vocabulary)
        _add_tokens(raw, vocabulary)
    except Exception as error:  # the library raises plain Exception
        raise _Unusable(f"the tokenizer cannot be built: {error}") from None
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", rule.adds_bos if rule else True)
    adds_eos = metadata.get("tokenizer.ggml.add_eos_token", False)
    named = vocabulary.named
    add_borders(
        raw,
        bos=named.get("bos_token") if adds_bos else None,
        eos=named.get("eos_token") if adds_eos else None,
    )
    return TokenizerParts(raw, named, _templates(metadata))


@dataclass(frozen=True)
class _Vocabulary:
    """The arrays of the metadata, checked.

    Attributes:
        types: one of NORMAL .. BYTE per token.
        named: "bos_token", ... -> the token's text.
    """

    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[str]
    named: Mapping[str, str]
    adds_space: bool

    @classmethod
    def of(cls, metadata: Metadata) -> "_Vocabulary":
        tokens = _array(metadata, "tokens", str)
        if not tokens:
            raise _Unusable(f"{PREFIX}tokens is missing")
        defaults = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
        ids = defaults if metadata["tokenizer.ggml.model"] == "llama" else {}
        ids = ids | {
            key: metadata[at] for key in NAMED_IDS.values() if (at := PREFIX + key) in metadata
        }
        return cls(
            tokens,
            _array(metadata, "token_type", int) or [NORMAL] * len(tokens),
            _array(metadata, "scores", float),
            _array(metadata, "merges", str),
            {name: _at(tokens, ids[key], key) for name, key in NAMED_IDS.items() if key in ids},
            bool(metadata.get(PREFIX + "add_space_prefix", True)),
        )

    def ids(self) -> dict[str, int]:
        """Token -> id, without the padding that has no text."""
        pairs = zip(self.tokens, self.types, strict=True)
        return {text: index for index, (text, kind) in enumerate(pairs) if kind != UNUSED}

    def of_type(self, *types: int) -> list[str]:
        """The tokens of these types, in order."""
        return [text for text, kind in zip(self.tokens, self.types, strict=True) if kind in types]


def _array(metadata: Metadata, key: str, kind: type) -> list:
    values = metadata.get(PREFIX + key, [])
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values[:1]):
        raise _Unusable(f"{PREFIX}{key} is no array of {kind.__name__}")
    return values


def _at(tokens: Sequence[str], index: object, key: str) -> str:
    if not isinstance(index, int) or not 0 <= index < len(tokens):
        raise _Unusable(f"{PREFIX}{key} is {index!r}; its vocabulary has {len(tokens)} tokens")
    return tokens[index]


def _word_rule(metadata: Metadata) -> WordRule:
    name = metadata.get(PREFIX + "pre", "default")
    if name not in WORD_RULES:
        raise _Unusable(
            f"tokenizer.ggml.pre is {name!r}; supported are {', '.join(sorted(WORD_RULES))}"
        )
    return WORD_RULES[name]


def _byte_level(vocabulary: _Vocabulary, rule: WordRule) -> Tokenizer:
    merges = [
        (left, right) for left, _, right in (merge.partition(" ") for merge in vocabulary.merges)
    ]
    raw = Tokenizer(models.BPE(vocabulary.ids(), merges, ignore_merges=rule.ignore_merges))
    if rule.normalizer:
        raw.normalizer = rule.normalizer()
    words = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.pre_tokenizer = pre_tokenizers.Sequence([*words, spell])
    raw.decoder = decoders.ByteLevel()
    return raw


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    model = models.BPE(
        vocabulary.ids(),
        _merges_by_score(vocabulary),
        unk_token=vocabulary.named["unk_token"],
        fuse_unk=True,
        byte_fallback=True,
    )
    raw = Tokenizer(model)
    prepend = [normalizers.Prepend("▁")] if vocabulary.adds_space else []
    raw.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if vocabulary.adds_space else []
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return raw


def _merges_by_score(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others, the best score first."""
    if len(vocabulary.scores) != len(vocabulary.tokens):
        raise _Unusable("a sentencepiece vocabulary needs tokenizer.ggml.scores, one per token")
    normal = set(vocabulary.of_type(NORMAL))
    ranked = []
    for index, (piece, score) in enumerate(zip(vocabulary.tokens, vocabulary.scores, strict=True)):
        if piece in normal:
            cuts = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
            ranked += [(-score, index, *cut) for cut in cuts if normal.issuperset(cut)]
    return [(left, right) for _, _, left, right in sorted(ranked)]


def _add_tokens(raw: Tokenizer, vocabulary: _Vocabulary) -> None:
    """Let the text of special and user-defined tokens become their ids."""
    special = dict.fromkeys([*vocabulary.of_type(CONTROL, UNKNOWN), *vocabulary.named.values()])
    plain = [text for text in vocabulary.of_type(USER_DEFINED) if text not in special]
    raw.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    raw.add_tokens([AddedToken(text, normalized=False) for text in plain])


def _templates(metadata: Metadata) -> dict[str, str]:
    """Chat templates by name: `tokenizer.chat_template`, and `tokenizer.chat_template.NAME`."""
    key = "tokenizer.chat_template"
    found = {
        name.removeprefix(key).lstrip("."): text
        for name, text in metadata.items()
        if name.startswith(key)
    }
    return {name or "default": text for name, text in found.items() if isinstance(text, str)}
