"""Batch invariance: where a token's computation can be the same, bit for bit, whatever else is
computed beside it, and the refusal of everything else.

What makes it so: every step has one padded shape, so each kind of program is compiled once; every
token attends as the only query of a sequence, in splits at fixed positions; a row of a product is
one sum over its inputs in their order (`device/cpu/csrc/matmul.h`); norms, rotations and draws are
of one row each. `README.md` lists what is covered on which path.
"""

from collections.abc import Callable, Iterator
from typing import Any

from paged_jax.config import MeshShape, ModelConfig, OptionError
from paged_jax.engine_args import EngineArgs

POOLS = ("auto", "float32", "bfloat16")


def check_batch_invariance(
    args: EngineArgs,
    model: ModelConfig,
    shape: MeshShape,
    logits_processor: Callable[..., Any] | None = None,
) -> None:
    """Raise OptionError, with the reason and the remedy, where bits cannot be promised."""
    for reason in _hindrances(args, model, shape, logits_processor):
        raise OptionError(f"--batch-invariant {reason}")


def _hindrances(
    args: EngineArgs,
    model: ModelConfig,
    shape: MeshShape,
    logits_processor: Callable[..., Any] | None,
) -> Iterator[str]:
    if shape.num_devices > 1:
        yield (
            f"runs on one device, not on {shape.num_devices}, whose sums would be in another "
            "order: leave out the --...-parallel-size options"
        )
    if args.enforce_eager:
        yield "needs compiled steps: leave out --enforce-eager"
    if args.enable_taps:
        yield "needs one program a kind, and --enable-taps makes a second: leave one of them out"
    if not model.is_packed:
        yield (
            "needs the CPU kernels, as XLA's products and those for GPUs may add up a row in an "
            "order that depends on its place: use a CPU with a C++ compiler, and --dtype float32 "
            f"or bfloat16 (it is {model.dtype})"
        )
    if args.kv_cache_dtype not in POOLS:
        yield (
            f"reads no pool of {args.kv_cache_dtype}: choose --kv-cache-dtype {', '.join(POOLS)}"
        )
    if model.quantisation is not None and model.quantisation.method != "int8":
        yield (
            f"multiplies no {model.quantisation.method} matrices, which XLA dequantises: use "
            "--quantization int8 or floats"
        )
    if logits_processor is not None:
        yield "cannot vouch for a logits_processor: leave it out"
