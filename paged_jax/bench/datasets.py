"""Requests to measure with: random, with shared prefixes, or out of a file of conversations.

The same arguments give the same token ids on every machine and for every back end. Lengths are
exact: random prompts are token ids, not text.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from paged_jax.config import OptionError
from paged_jax.host.sampling_params import SamplingParams

FIRST_ID = 100  # lower ids are special tokens in many vocabularies
MIN_LEN, MAX_PROMPT, MAX_TOTAL = 4, 1024, 2048  # what is taken from a file, as vLLM's client does
NAMES = ("random", "sharegpt", "prefix_repetition")


class Encoder(Protocol):
    """Turns text into token ids."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`."""
        ...


class Codec(Encoder, Protocol):
    """Turns token ids into text too."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`."""
        ...


@dataclass(frozen=True)
class BenchRequest:
    """One request: a prompt, and how many tokens must be generated."""

    prompt: tuple[int, ...]
    max_tokens: int


def exactly(max_tokens: int) -> SamplingParams:
    """Return greedy sampling to an exact length, of ids alone."""
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)


@dataclass(frozen=True)
class Draw:
    """How random prompts are drawn: uniformly from the ids between FIRST_ID and `vocab_size`."""

    num_prompts: int
    vocab_size: int = 32_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_prompts < 1:
            raise OptionError(f"--num-prompts must be at least 1, not {self.num_prompts}")
        if self.vocab_size <= FIRST_ID:
            raise OptionError(f"--vocab-size must exceed {FIRST_ID}, not {self.vocab_size}")


def ids(rng: np.random.Generator, length: int, vocab_size: int) -> tuple[int, ...]:
    """Return `length` random token ids."""
    return tuple(rng.integers(FIRST_ID, vocab_size, size=length).tolist())


def random_requests(
    draw: Draw,
    *,
    input_len: int,
    output_len: int,
    range_ratio: float = 0.0,
    prefix_len: int = 0,
) -> list[BenchRequest]:
    """Draw prompts of `prefix_len` common ids and own ones.

    Args:
        range_ratio: lengths of the own part and of the output are uniform in
            [length * (1 - ratio), length * (1 + ratio)].
    """
    if not 0 <= range_ratio < 1:
        raise OptionError(f"--random-range-ratio must be in [0, 1), not {range_ratio}")
    _check_lens(input_len, output_len)
    rng = np.random.default_rng(draw.seed)
    prefix = ids(rng, prefix_len, draw.vocab_size)
    inputs = _spread(rng, input_len, range_ratio, draw.num_prompts)
    outputs = _spread(rng, output_len, range_ratio, draw.num_prompts)
    return [
        BenchRequest(prefix + ids(rng, length, draw.vocab_size), max_tokens)
        for length, max_tokens in zip(inputs, outputs, strict=True)
    ]


def prefix_requests(
    draw: Draw, *, prefix_len: int, suffix_len: int, num_prefixes: int, output_len: int
) -> list[BenchRequest]:
    """Draw `num_prefixes` prefixes, each shared by as many requests, in random order."""
    if not 1 <= num_prefixes <= draw.num_prompts:
        raise OptionError(
            f"--prefix-repetition-num-prefixes must be between 1 and --num-prompts "
            f"({draw.num_prompts}), not {num_prefixes}"
        )
    _check_lens(prefix_len + suffix_len, output_len)
    rng = np.random.default_rng(draw.seed)
    prefixes = [ids(rng, prefix_len, draw.vocab_size) for _ in range(num_prefixes)]
    order = rng.permutation(draw.num_prompts) % num_prefixes
    return [
        BenchRequest(prefixes[index] + ids(rng, suffix_len, draw.vocab_size), output_len)
        for index in order
    ]


def file_requests(
    path: Path, encoder: Encoder, *, num_prompts: int, seed: int = 0, output_len: int | None = None
) -> list[BenchRequest]:
    """Take conversations of a ShareGPT-style JSON file: first turn in, as long as the second out.

    The file is a list of {"conversations": [{"from": ..., "value": text}, ...]}. Turns of fewer
    than 4 tokens, prompts above 1,024 and conversations above 2,048 are passed over.

    Raises:
        OptionError: the file cannot be read, or holds too few usable conversations.
    """
    found: list[BenchRequest] = []
    turns = _conversations(path)
    for index in np.random.default_rng(seed).permutation(len(turns)):
        question, answer = turns[index]
        prompt = encoder.encode(question)
        max_tokens = output_len or len(encoder.encode(answer, add_special_tokens=False))
        total = len(prompt) + max_tokens
        if min(len(prompt), max_tokens) < MIN_LEN or len(prompt) > MAX_PROMPT or total > MAX_TOTAL:
            continue
        found.append(BenchRequest(tuple(prompt), max_tokens))
        if len(found) == num_prompts:
            return found
    raise OptionError(
        f"{path} holds {len(found)} usable conversations: choose --num-prompts at most that many"
    )


def add_dataset_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose the requests; the names are vLLM's."""
    add = parser.add_argument_group("requests").add_argument
    add("--dataset-name", choices=NAMES, default="random", help="(default: %(default)s)")
    add("--dataset-path", type=Path, metavar="FILE", help="ShareGPT-style JSON")
    add("--num-prompts", type=int, default=1000, help="(default: %(default)s)")
    add("--input-len", "--random-input-len", type=int, default=1024, help="tokens (1024)")
    add("--output-len", "--random-output-len", type=int, help="tokens (128; a file's own)")
    add("--random-range-ratio", type=float, default=0.0, help="spread of the lengths (0)")
    add("--random-prefix-len", type=int, default=0, help="ids common to all prompts (0)")
    add("--prefix-repetition-prefix-len", type=int, default=256, help="(default: %(default)s)")
    add("--prefix-repetition-suffix-len", type=int, default=256, help="(default: %(default)s)")
    add("--prefix-repetition-num-prefixes", type=int, default=10, help="(default: %(default)s)")
    add("--prefix-repetition-output-len", type=int, default=128, help="(default: %(default)s)")
    add("--vocab-size", type=int, default=32_000, help="random ids are below (%(default)s)")


def read_dataset(options: argparse.Namespace, encoder: Encoder | None = None) -> list[BenchRequest]:
    """Return the requests that the flags ask for.

    Args:
        encoder: only a file needs one.
    Raises:
        OptionError: names the flag that is missing or out of range.
    """
    if options.dataset_name == "sharegpt":
        if options.dataset_path is None or encoder is None:
            raise OptionError("--dataset-name sharegpt needs --dataset-path and a tokenizer")
        return file_requests(
            options.dataset_path, encoder, num_prompts=options.num_prompts, seed=options.seed,
            output_len=options.output_len,
        )  # fmt: skip
    draw = Draw(options.num_prompts, options.vocab_size, options.seed)
    if options.dataset_name == "prefix_repetition":
        return prefix_requests(
            draw,
            prefix_len=options.prefix_repetition_prefix_len,
            suffix_len=options.prefix_repetition_suffix_len,
            num_prefixes=options.prefix_repetition_num_prefixes,
            output_len=options.prefix_repetition_output_len,
        )
    return random_requests(
        draw,
        input_len=options.input_len,
        output_len=options.output_len or 128,
        range_ratio=options.random_range_ratio,
        prefix_len=options.random_prefix_len,
    )


def _check_lens(input_len: int, output_len: int) -> None:
    if input_len < 1 or output_len < 1:
        raise OptionError(
            f"prompts and outputs must have at least 1 token, not {input_len} and {output_len}"
        )


def _spread(rng: np.random.Generator, length: int, ratio: float, count: int) -> list[int]:
    low, high = max(1, int(length * (1 - ratio))), int(length * (1 + ratio))
    return rng.integers(low, high + 1, size=count).tolist()


def _conversations(path: Path) -> list[tuple[str, str]]:
    """Return the first two turns of every conversation that has them."""
    try:
        entries = json.loads(path.read_text())
        turns = [[turn["value"] for turn in entry["conversations"][:2]] for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"--dataset-path {path} must be a JSON list of conversations: {error!r}"
        ) from error
    return [(first[0], first[1]) for first in turns if len(first) == 2]
