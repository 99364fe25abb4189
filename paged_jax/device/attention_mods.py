"""A user's own attention: checked before anything is loaded or compiled."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from paged_jax.config import AttentionMods, ModelConfig, OptionError
from paged_jax.engine_args import EngineArgs

SHAPE = (2, 3, 5, 7)  # of scores, for a trial


def check_mods(
    mods: AttentionMods | None, args: EngineArgs, model: ModelConfig
) -> AttentionMods | None:
    """Return the functions if they can be compiled into this model's layers; None if none is given.

    Raises:
        OptionError: a function fails or returns something else than it should, or an option does
            not go with it.
    """
    if mods is None or not mods.has_any:
        return None
    places = [jax.ShapeDtypeStruct(SHAPE, jnp.int32)] * 3
    scores = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    _try("score_mod", mods.score_mod, [scores, *places], jnp.floating)
    _try("mask_mod", mods.mask_mod, places, jnp.bool_)
    devices = args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size
    if devices > 1:
        raise OptionError(f"attention of your own runs on one device, not on {devices}")
    if args.batch_invariant:
        raise OptionError("--batch-invariant cannot vouch for attention of your own: leave it out")
    if mods.bidirectional:
        _check_bidirectional(mods.bidirectional, args, model)
    return mods


def _try(name: str, function: Callable[..., Any] | None, arguments: list[Any], kind: Any) -> None:
    """Trace a function for its result alone."""
    if function is None:
        return
    try:
        result = jax.eval_shape(function, *arguments)
    except Exception as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OptionError(f"{name} cannot be traced by JAX: {cause}") from error
    if getattr(result, "shape", None) != SHAPE or not jnp.issubdtype(result.dtype, kind):
        wanted = "a boolean" if kind is jnp.bool_ else "a floating-point number"
        raise OptionError(f"{name} must return {wanted} for each score, not {result}")


def _check_bidirectional(count: int, args: EngineArgs, model: ModelConfig) -> None:
    """What sees each other must be computed in one step, and is no prefix that others share."""
    if not 1 <= count <= args.max_num_batched_tokens:
        raise OptionError(
            f"bidirectional must be between 1 and --max-num-batched-tokens "
            f"({args.max_num_batched_tokens}), as one step computes it, not {count}"
        )
    if args.enable_prefix_caching:
        raise OptionError("bidirectional tokens are no prefix to share: --no-enable-prefix-caching")
    if any(model.windows):
        raise OptionError("bidirectional tokens do not go with this model's sliding windows")
