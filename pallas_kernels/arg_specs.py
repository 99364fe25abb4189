"""Named shapes of one paged attention call, shared by tests and benchmarks of every implementation.

Inputs are hostile on purpose: shuffled block tables with ids far out of range past each context,
and NaN in every slot that no live token owns.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

UNUSED_BLOCK = 1 << 30


@dataclass(frozen=True)
class AttentionSpec:
    """The shape of one call.

    Attributes:
        query_lens: new tokens of each sequence.
        kv_lens: tokens of each sequence in the pool, the new ones among them.
        num_tokens: packed tokens, padding included.
        num_seqs: rows of the block table, padding included.
        max_blocks: columns of the block table.
    """

    name: str
    query_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    num_tokens: int
    num_seqs: int
    q_heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    block_size: int = 16
    max_blocks: int = 24
    window: int | None = None
    softcap: float | None = None

    @property
    def scale(self) -> float:
        """The usual 1 / sqrt(head_dim)."""
        return self.head_dim**-0.5

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool: what the sequences hold, the null block and three free ones."""
        return 4 + sum(-(-length // self.block_size) for length in self.kv_lens)


class AttentionInputs(NamedTuple):
    """The arrays of one call, in the order of `paged_attention`'s parameters."""

    q: np.ndarray
    k_pool: np.ndarray
    v_pool: np.ndarray
    block_tables: np.ndarray
    query_starts: np.ndarray
    kv_lens: np.ndarray


DECODE = AttentionSpec("decode", (1, 1, 1, 1), (1, 130, 17, 256), num_tokens=8, num_seqs=8)
MIXED = AttentionSpec(
    "mixed", (1, 37, 1, 16, 2), (40, 165, 129, 16, 300), num_tokens=64, num_seqs=8
)
# Lengths around every border of blocks of 5 and 16 and of context tiles of 16, 64 and 128.
BORDER_LENS = (1, 4, 5, 6, 15, 16, 17, 63, 64, 65, 127, 128, 129, 160, 191, 193)
DECODE_BORDERS = AttentionSpec(
    "decode borders",
    (1,) * 16,
    BORDER_LENS,
    16,
    16,
    q_heads=3,
    kv_heads=1,
    block_size=5,
    max_blocks=40,
)
# Query tiles hold 21 tokens of 3 heads.
PREFILL_BORDERS = replace(
    DECODE_BORDERS,
    name="prefill borders",
    query_lens=(1, 4, 5, 1, 15, 1, 17, 20, 21, 22, 41, 42, 43, 63, 64, 65),
    num_tokens=448,
    block_size=16,
)
ATTENTION_SPECS = (
    DECODE,
    DECODE_BORDERS,
    PREFILL_BORDERS,
    AttentionSpec("decode one", (1,), (200,), num_tokens=1, num_seqs=1),
    AttentionSpec("prefill", (48,), (48,), num_tokens=64, num_seqs=4),
    AttentionSpec("prefill chunk", (64,), (260,), num_tokens=64, num_seqs=1),
    AttentionSpec("prefill in few tokens", (7, 1), (200, 30), num_tokens=8, num_seqs=8),
    AttentionSpec("nothing", (), (), num_tokens=16, num_seqs=4),
    MIXED,
    replace(MIXED, name="mixed group 1", q_heads=3),
    replace(MIXED, name="mixed group 5", q_heads=15),
    replace(MIXED, name="mixed group 7", q_heads=14, kv_heads=2),
    replace(MIXED, name="mixed head 80", q_heads=4, kv_heads=2, head_dim=80),
    replace(MIXED, name="mixed head 128", q_heads=4, kv_heads=1, head_dim=128),
    replace(MIXED, name="mixed group 8", q_heads=16, kv_heads=2),
    replace(MIXED, name="mixed head 96", q_heads=4, kv_heads=2, head_dim=96),
    replace(MIXED, name="mixed head 256", q_heads=4, kv_heads=1, head_dim=256),
    replace(MIXED, name="mixed blocks of 256", block_size=256, max_blocks=2),
    replace(MIXED, name="mixed blocks of 1", block_size=1, max_blocks=310),
    replace(MIXED, name="mixed blocks of 8", block_size=8, max_blocks=40),
    replace(MIXED, name="mixed blocks of 64", block_size=64, max_blocks=5),
    replace(DECODE, name="decode window", window=20),
    replace(DECODE, name="decode softcap in a window", window=100, softcap=2.0),
    replace(MIXED, name="mixed window 1", window=1),
    replace(MIXED, name="mixed window 130", window=130),
    replace(MIXED, name="mixed softcap", softcap=2.0),
)


def make_inputs(spec: AttentionSpec, seed: int) -> AttentionInputs:
    """Return float32 inputs for a spec, as numpy arrays."""
    rng = np.random.default_rng(seed)
    shape = (spec.num_blocks, spec.block_size, spec.kv_heads, spec.head_dim)
    normal = lambda *size: rng.normal(size=size).astype(np.float32)  # noqa: E731
    k_pool, v_pool = normal(*shape), normal(*shape)
    tables, is_live = _block_tables(spec, rng)
    k_pool[~is_live], v_pool[~is_live] = np.nan, np.nan
    kv_lens = np.zeros(spec.num_seqs, np.int32)
    kv_lens[: len(spec.kv_lens)] = spec.kv_lens
    query_lens = np.zeros(spec.num_seqs + 1, np.int32)
    query_lens[1 : 1 + len(spec.query_lens)] = spec.query_lens
    return AttentionInputs(
        q=normal(spec.num_tokens, spec.q_heads, spec.head_dim),
        k_pool=k_pool,
        v_pool=v_pool,
        block_tables=tables,
        query_starts=np.cumsum(query_lens, dtype=np.int32),
        kv_lens=kv_lens,
    )


def make_sinks(spec: AttentionSpec) -> np.ndarray:
    """Return float32 sinks [q_heads]: around the scores, far above, far below, and none at all."""
    sinks = np.linspace(-3.0, 3.0, spec.q_heads, dtype=np.float32)
    sinks[:3] = 60.0, -60.0, -np.inf
    return sinks


def _block_tables(spec: AttentionSpec, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Shuffled tables, and which slots [blocks block_size] hold a live token."""
    free = list(rng.permutation(np.arange(1, spec.num_blocks)))
    tables = np.full((spec.num_seqs, spec.max_blocks), UNUSED_BLOCK, np.int32)
    is_live = np.zeros((spec.num_blocks, spec.block_size), np.bool_)
    for row, length in enumerate(spec.kv_lens):
        for index, start in enumerate(range(0, length, spec.block_size)):
            tables[row, index] = free.pop()
            is_live[tables[row, index], : length - start] = True
    return tables, is_live
