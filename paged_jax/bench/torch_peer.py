"""How fast are the same decode steps by transformers on torch, where these are installed?

They run in a process of their own, so that neither library holds the other's memory or falls with
it. JAX keeps three quarters of a GPU to itself meanwhile: the rest must do for torch.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from paged_jax.bench.cases import Case, LeftOut, Measurement
from paged_jax.bench.sizes import Queries, Sizes
from paged_jax.bench.steps import Step, step_bytes, step_flops
from paged_jax.bench.timing import Effort, Timing
from paged_jax.bench.torch_steps import Wanted
from paged_jax.config import ModelConfig
from paged_jax.models.params import abstract_params

PROGRAM = (sys.executable, "-m", "paged_jax.bench.torch_steps")
TIMEOUT_S = 45.0


def peers(sizes: Sizes) -> Iterator[Case]:
    """Yield the first model's decode steps by transformers."""
    name, config = next(iter(sizes.models.items()))
    for batch in sizes.torch_batches:
        step = Step(config, Queries(batch, 1, sizes.step_context))
        run = partial(_measure, step, sizes.effort)
        yield Case(f"{name} decode batch {batch}, transformers", config.dtype, run)


def _measure(step: Step, effort: Effort) -> Measurement:
    missing = [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]
    if missing:
        raise LeftOut(f"not installed: {' '.join(missing)}")
    wanted = Wanted(
        family=step.config.family,
        shape=_shape(step.config),
        dtype=step.config.dtype,
        batch=step.queries.num_seqs,
        context=step.queries.context,
        groups=effort.groups,
        calls=effort.calls,
    )
    seconds = seconds_of((*PROGRAM, json.dumps(asdict(wanted))))
    median, p90 = np.percentile(seconds, [50, 90])
    timing = Timing(float(median), float(p90), len(seconds), effort.calls)
    num_bytes = step_bytes(step, abstract_params(step.config))
    return Measurement(timing, num_bytes, step_flops(step), compile_s=0.0)


def seconds_of(command: Sequence[str]) -> list[float]:
    """Run the other program and return what it measured.

    Raises:
        LeftOut: it took too long.
        RuntimeError: it failed; with the last line it wrote.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise LeftOut(f"not done after {TIMEOUT_S:.0f} s") from None
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or "no message").splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])["seconds"]


def _shape(config: ModelConfig) -> dict[str, int | bool]:
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.embed_dim,
        "intermediate_size": config.mlp_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_q_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tie_embeddings,
    }
