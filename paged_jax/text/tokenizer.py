"""The model's tokenizer: text to ids and back, and chat messages to ids.

A thin layer over the `tokenizers` library. Ids equal the reference's (Hugging Face for folders,
llama.cpp for GGUF files); no code from a model's folder is run. Threads may share an instance.
"""

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.text.chat_template import Messages, Tools, render
from paged_jax.text.gguf_tokenizer import read_gguf
from paged_jax.text.hf_folder import read_folder
from paged_jax.text.vocabulary import TokenizerParts, byte_parts, spelling_of


class Tokenizer:
    """Encode and decode as the model's own tokenizer files say.

    Attributes:
        named_tokens: "bos_token", "eos_token", ... -> the token's text.
        templates: chat templates by name; the usual one is "default".
        size: one more than the largest id that has a token.
        special_ids: ids that `skip_special_tokens` leaves out.
        strips_first_space: decoding drops one space at the start of a text (sentencepiece).
    """

    def __init__(self, parts: TokenizerParts):
        self._raw = parts.raw
        self._spelling = spelling_of(parts.raw)
        self._bytes: dict[int, bytes] = {}
        self.named_tokens = dict(parts.named_tokens)
        self.templates = dict(parts.templates)
        self.size = 1 + max(parts.raw.get_vocab().values(), default=-1)
        added = parts.raw.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.strips_first_space = self._spelling.strips_first_space

    @classmethod
    def from_folder(cls, path: str | PathLike[str]) -> "Tokenizer":
        """Read the tokenizer of a Hugging Face folder; a ModelError says what is missing."""
        return cls(read_folder(Path(path)))

    @classmethod
    def from_gguf(cls, path: str | PathLike[str]) -> "Tokenizer":
        """Rebuild the tokenizer of a GGUF file; a ModelError names what is not supported."""
        return cls(read_gguf(Path(path)))

    @classmethod
    def of_bytes(cls) -> "Tokenizer":
        """Return a tokenizer whose 256 tokens are the bytes, for models that come without one."""
        return cls(byte_parts())

    def save(self, folder: Path) -> None:
        """Write the files that `from_folder` reads."""
        self._raw.save(str(folder / "tokenizer.json"))
        templates = [{"name": n, "template": text} for n, text in self.templates.items()]
        facts = {
            name: text
            for name, text in self.named_tokens.items()
            if self._named_id(name) in self.special_ids
        }
        text = json.dumps(facts | {"chat_template": templates}, ensure_ascii=False)
        (folder / "tokenizer_config.json").write_text(text, "utf-8")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; the text of special tokens becomes their ids.

        Args:
            add_special_tokens: let the tokenizer add what it adds to a plain prompt (BOS).
        """
        try:
            return self._raw.encode(text, add_special_tokens=add_special_tokens).ids
        except (TypeError, UnicodeEncodeError):
            raise InvalidRequest(
                "the prompt holds an unpaired surrogate, which is no Unicode text", "prompt"
            ) from None

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`, spaces as they are; ids without a token are skipped."""
        return self._raw.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that `token` adds to a text; b"" for an id without a token."""
        known = self._bytes.get(token)
        if known is None:
            text = self._raw.id_to_token(token) if 0 <= token < self.size else None
            known = b"" if text is None else self._spelling.to_bytes(text)
            self._bytes[token] = known
        return known

    def token_text(self, token: int) -> str:
        """Return the text of `token` alone: leading space kept, parts of characters as U+FFFD."""
        return self.token_bytes(token).decode(errors="replace")

    def has(self, token: int) -> bool:
        """Return whether the id has a token."""
        return 0 <= token < self.size and self._raw.id_to_token(token) is not None

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text."""
        return self._named_id("bos_token")

    @property
    def eos_id(self) -> int | None:
        """The id that ends a text, according to the tokenizer (the model may name more)."""
        return self._named_id("eos_token")

    @property
    def chat_template(self) -> str | None:
        """The template of a chat without tools."""
        return self.templates.get("default")

    def render_chat(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Tools | None = None,
        template: str | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the prompt text of a chat.

        Args:
            template: instead of the model's own.
            variables: more names for the template to see.
        """
        return render(
            template or self._template_for(tools),
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables={**self.named_tokens, **(variables or {})},
        )

    def encode_chat(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Tools | None = None,
        template: str | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Return the prompt ids of a chat; nothing is added to what the template writes."""
        text = self.render_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            template=template,
            variables=variables,
        )
        return self.encode(text, add_special_tokens=False)

    def _template_for(self, tools: Tools | None) -> str:
        name = "tool_use" if tools and "tool_use" in self.templates else "default"
        if name not in self.templates:
            raise InvalidRequest(
                "the model has no chat template; send a prompt, or give a chat_template", "messages"
            )
        return self.templates[name]

    def _named_id(self, name: str) -> int | None:
        text = self.named_tokens.get(name)
        return None if text is None else self._raw.token_to_id(text)
