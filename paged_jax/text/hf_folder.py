"""Reads the tokenizer of a Hugging Face folder.

`tokenizer.json` holds the tokenizer itself; the files beside it name the special tokens and the
chat template. A folder without it (a sentencepiece model, or vocab.json and merges.txt) is
converted by `transformers`, never by code from the folder.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from paged_jax.config import ModelError
from paged_jax.text.vocabulary import TokenizerParts

NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def read_folder(folder: Path) -> TokenizerParts:
    """Return the tokenizer in `folder`.

    Raises:
        ModelError: there is none, or it cannot be read.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder} is no folder; a tokenizer is read from a model's folder")
    facts = _read_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in facts:  # written before transformers kept all in one file
        facts |= _read_json(folder / "special_tokens_map.json")
    try:
        raw, named = _read_raw(folder, facts)
        templates = _templates(folder, facts)
    except ModelError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{folder}: tokenizer_config.json is malformed: {error!r}") from None
    raw.no_truncation()
    raw.no_padding()
    return TokenizerParts(raw, named, templates)


def _read_raw(
    folder: Path, facts: Mapping[str, Any]
) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """The tokenizer, and its named special tokens."""
    if not (folder / "tokenizer.json").is_file():
        return _convert(folder)
    raw = _read_tokenizer(folder / "tokenizer.json")
    named = {name: text for name in NAMES if (text := _text(facts.get(name))) is not None}
    _add_tokens(raw, facts, named)
    return raw, named


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}") from None
    if not isinstance(facts, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return facts


def _read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{path} is no tokenizer of the tokenizers library: {error}") from None


def _convert(folder: Path) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """Let transformers convert the older files."""
    from transformers import AutoTokenizer  # slow to import, and rarely needed

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=False, use_fast=True, local_files_only=True
        )
        return tokenizer.backend_tokenizer, dict(tokenizer.special_tokens_map)
    except Exception as error:  # whatever the conversion meets, the folder is at fault
        reason = str(error).strip().split("\n")[0]
        raise ModelError(
            f"{folder} holds no tokenizer.json, and its other tokenizer files "
            f"cannot be converted: {reason}"
        ) from None


def _text(token: object) -> str | None:
    """The text of a token that is written as a string or as an AddedToken's fields."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def _add_tokens(
    raw: tokenizers.Tokenizer, facts: Mapping[str, Any], named: Mapping[str, str]
) -> None:
    """Add what the configuration declares and tokenizer.json lacks, as transformers does."""
    known = {token.content for token in raw.get_added_tokens_decoder().values() if token.special}
    declared = facts.get("added_tokens_decoder") or {}
    fields = [declared[index] for index in sorted(declared, key=int)]
    fields += [facts[name] for name in named]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        fields += facts[key] if isinstance(facts.get(key), list) else []
    for token in map(_added_token, fields):
        if token.content not in known:
            known.add(token.content)
            raw.add_tokens([token])


def _added_token(fields: str | Mapping[str, Any]) -> tokenizers.AddedToken:
    if isinstance(fields, str):
        return tokenizers.AddedToken(fields, special=True, normalized=False)
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    given = {flag: bool(fields[flag]) for flag in flags if flag in fields}
    return tokenizers.AddedToken(fields["content"], **{"special": True, **given})


def _templates(folder: Path, facts: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; files win over tokenizer_config.json."""
    found = facts.get("chat_template")
    templates = {"default": found} if isinstance(found, str) else {}
    if isinstance(found, list):
        templates = {entry["name"]: entry["template"] for entry in found}
    if (path := folder / "chat_template.jinja").is_file():
        templates = {"default": path.read_text(encoding="utf-8")}
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    return templates
