"""Ids to text as they come, never half a character.

Every token stands for bytes, and bytes become characters once they are complete: each token costs
the same, and no sequence of ids is illegal. For byte-level BPE the joined text equals
`Tokenizer.decode` of the generated ids. For sentencepiece it does where the bytes are valid (there
`decode` turns a whole run of byte tokens into U+FFFD if one is not).
"""

import codecs
from collections.abc import Sequence

from paged_jax.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of one generated sequence.

    The prompt's ids only say whether a text starts here (sentencepiece drops its first space): a
    prompt that ends inside a character does not lend its bytes to the answer.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int], *, skip_special_tokens: bool = True
    ):
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = tokenizer.strips_first_space and not any(map(self._bytes, prompt_ids))

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that these tokens complete."""
        data = b"".join(map(self._bytes, token_ids))
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Return what is left at the end: an incomplete character, as U+FFFD."""
        return self._decoder.decode(b"", final=True)

    def _bytes(self, token: int) -> bytes:
        return b"" if token in self._skipped else self._tokenizer.token_bytes(token)
