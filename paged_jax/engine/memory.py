"""The memory ledger: what the weights and the programs take, and how many KV blocks the rest holds.

Measured, never guessed: weights by their arrays, programs by XLA's memory analysis of the largest
one, the device's limit by its own statistics. On a CPU the KV pool has a budget of its own.
"""

import math
from dataclasses import dataclass, replace

import jax

from paged_jax.config import GIB, OptionError
from paged_jax.engine_args import EngineArgs

CPU_POOL_BYTES = GIB


@dataclass(frozen=True)
class MemoryLedger:
    """Where the device's memory goes, in bytes; the parts sum to `total_bytes`.

    Attributes:
        total_bytes: what the engine may use.
        weights_bytes: parameters.
        programs_bytes: temporary memory and outputs of the largest program.
        pool_bytes: the KV pool.
        num_blocks: its blocks, the null block included.
    """

    total_bytes: int
    weights_bytes: int
    programs_bytes: int
    pool_bytes: int
    num_blocks: int
    block_size: int

    def with_programs(self, programs_bytes: int) -> "MemoryLedger":
        """Return the ledger with the programs' measured memory; the pool stays as it is."""
        extra = programs_bytes - self.programs_bytes
        total = self.total_bytes + max(0, extra - self.unused_bytes)
        return replace(self, programs_bytes=programs_bytes, total_bytes=total)

    def with_blocks(self, num_blocks: int) -> "MemoryLedger":
        """Return the ledger with fewer blocks than there is room for."""
        pool = self.pool_bytes // self.num_blocks * num_blocks
        return replace(self, num_blocks=num_blocks, pool_bytes=pool)

    @property
    def unused_bytes(self) -> int:
        """What is left over."""
        return self.total_bytes - self.weights_bytes - self.programs_bytes - self.pool_bytes

    @property
    def token_capacity(self) -> int:
        """Tokens the pool can hold."""
        return (self.num_blocks - 1) * self.block_size

    def concurrency(self, max_model_len: int) -> float:
        """Return how many sequences of `max_model_len` tokens fit at once."""
        return (self.num_blocks - 1) / math.ceil(max_model_len / self.block_size)

    def describe(self, max_model_len: int) -> str:
        """Return the ledger as a table whose parts sum to the total."""
        rows = [
            ("weights", self.weights_bytes),
            ("programs (temporary)", self.programs_bytes),
            (f"KV pool ({self.num_blocks:,} blocks of {self.block_size} tokens)", self.pool_bytes),
            ("unused", self.unused_bytes),
            ("total", self.total_bytes),
        ]
        width = max(len(name) for name, _ in rows)
        table = "\n".join(f"  {name:<{width}} {_mib(size):>12} MiB" for name, size in rows)
        return (
            f"Memory:\n{table}\n"
            f"KV cache size: {self.token_capacity:,} tokens; maximum concurrency for "
            f"{max_model_len:,} tokens per request: {self.concurrency(max_model_len):.2f}x"
        )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f}"


def plan_memory(
    args: EngineArgs, *, weights_bytes: int, programs_bytes: int, block_bytes: int
) -> MemoryLedger:
    """Decide the number of KV blocks.

    Raises:
        OptionError: not even two blocks fit; names the flag to raise.
    """
    fixed = weights_bytes + programs_bytes
    if args.num_gpu_blocks_override is not None:
        num_blocks = args.num_gpu_blocks_override
        total = fixed + num_blocks * block_bytes
    else:
        budget = args.kv_cache_memory
        if budget is None:
            limit = device_bytes()
            budget = (
                CPU_POOL_BYTES
                if limit is None
                else int(limit * args.gpu_memory_utilization) - fixed
            )
        num_blocks, total = budget // block_bytes, fixed + max(budget, 0)
    if num_blocks < 2:
        flag = "--kv-cache-memory" if device_bytes() is None else "--gpu-memory-utilization"
        raise OptionError(
            f"the KV pool needs at least 2 blocks of {_mib(block_bytes)} MiB but has room for "
            f"{max(num_blocks, 0)}: raise {flag} or lower --block-size"
        )
    return MemoryLedger(
        total_bytes=total,
        weights_bytes=weights_bytes,
        programs_bytes=programs_bytes,
        pool_bytes=num_blocks * block_bytes,
        num_blocks=num_blocks,
        block_size=args.block_size,
    )


def device_bytes() -> int | None:
    """Return the first device's memory limit in bytes; None where it does not tell (CPU)."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return None
    return (device.memory_stats() or {}).get("bytes_limit")


def check_model_len(args: EngineArgs, ledger: MemoryLedger, max_model_len: int) -> None:
    """Refuse a model length that the pool cannot hold even once.

    With an explicit `--num-gpu-blocks-override` the user's number stands: longer requests are
    refused one by one.

    Raises:
        OptionError: states needed and available memory and the largest length that fits.
    """
    if max_model_len <= ledger.token_capacity or args.num_gpu_blocks_override is not None:
        return
    block_bytes = ledger.pool_bytes // ledger.num_blocks
    needed = (math.ceil(max_model_len / ledger.block_size) + 1) * block_bytes
    raise OptionError(
        f"--max-model-len {max_model_len} needs a KV pool of {_mib(needed)} MiB but there are "
        f"{_mib(ledger.pool_bytes)} MiB: the largest length that fits is {ledger.token_capacity}; "
        f"lower --max-model-len or raise --kv-cache-memory"
    )
