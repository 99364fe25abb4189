"""The named workloads of the side-by-side runs: exact request lists, the same for every engine.

W1 is one stream; W2 an offline batch of equal lengths; W3 one of mixed lengths; W4 a prefix that 32
requests share, not seen before, and W4W the same after it was served once; W5 is online, 32 clients
that each send their next request when the last is answered. Another seed draws other prompts, so
that nothing is served out of a cache of an earlier repetition; W3's lengths are always the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paged_jax.bench.datasets import BenchRequest, ids
from paged_jax.config import OptionError

VOCAB = 49_152
CLIENTS = 32


@dataclass(frozen=True)
class Workload:
    """One workload.

    Attributes:
        make: seed -> requests.
        is_online: over HTTP, from CLIENTS closed-loop clients; else all submitted at once.
        is_warm: the last request is served before the clock starts.
    """

    text: str
    make: Callable[[int], list[BenchRequest]]
    is_online: bool = False
    is_warm: bool = False


def equal(key: int, count: int, input_len: int, output_len: int) -> Callable[[int], list]:
    """Return a maker of requests of equal lengths."""

    def make(seed: int) -> list[BenchRequest]:
        rng = np.random.default_rng([key, seed])
        return [BenchRequest(ids(rng, input_len, VOCAB), output_len) for _ in range(count)]

    return make


def mixed(seed: int) -> list[BenchRequest]:
    """Return 64 requests of 16 to 512 tokens in and 16 to 256 out."""
    lengths = np.random.default_rng(0)
    inputs = lengths.integers(16, 513, size=64).tolist()
    outputs = lengths.integers(16, 257, size=64).tolist()
    rng = np.random.default_rng([3, seed])
    pairs = zip(inputs, outputs, strict=True)
    return [BenchRequest(ids(rng, length, VOCAB), max_tokens) for length, max_tokens in pairs]


def shared(seed: int) -> list[BenchRequest]:
    """Return 32 requests with a common prefix of 1,024 tokens, 32 of their own, and 32 out."""
    rng = np.random.default_rng([4, seed])
    prefix = ids(rng, 1024, VOCAB)
    return [BenchRequest(prefix + ids(rng, 32, VOCAB), 32) for _ in range(32)]


WORKLOADS = {
    "W1": Workload("1 request, 128 in, 128 out", equal(1, 1, 128, 128)),
    "W2": Workload("64 requests, 128 in, 128 out", equal(2, 64, 128, 128)),
    "W3": Workload("64 requests, 16..512 in, 16..256 out", mixed),
    "W4": Workload("32 requests on a cold common prefix of 1,024", shared),
    "W4W": Workload("the same, prefix warm", shared, is_warm=True),
    "W5": Workload(
        "128 requests 128/64 over HTTP, 32 clients", equal(5, 128, 128, 64), is_online=True
    ),
}


def workload(name: str) -> Workload:
    """Return a workload by its name; raises OptionError."""
    if name not in WORKLOADS:
        raise OptionError(f"--workloads must be of {', '.join(WORKLOADS)}, not {name!r}")
    return WORKLOADS[name]
