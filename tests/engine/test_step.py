"""The functional core, without an engine around it: one jitted function from arrays to arrays."""

from functools import partial

import jax
import numpy as np
from tiny import greedy, make_params, tiny_model_config

from paged_jax import engine_step
from paged_jax.compiled.step import StepInput
from paged_jax.config import CacheConfig
from paged_jax.device.kv_pool import init_pool
from paged_jax.device.sampling_rows import RowShape, draws, pack_rows
from paged_jax.device.step_batch import BatchShape, pack
from paged_jax.host.request import Chunk, Request, Sequence
from paged_jax.host.sampling_params import SamplingParams

BLOCK_SIZE = 4
PROMPT = tuple(range(5, 16))


def make_step(chunk: Chunk) -> StepInput:
    """The arrays of a step of one chunk, in one padded shape."""
    batch = pack([chunk], BatchShape(tokens=16, seqs=2, max_blocks=8, rows=2), BLOCK_SIZE)
    return StepInput(batch=batch, rows=pack_rows(draws([chunk]), RowShape(2, 32, 4)))


def test_engine_step_generates_what_the_oracle_does() -> None:
    config = tiny_model_config()
    params, pool = make_params(config), init_pool(config, CacheConfig(9, BLOCK_SIZE))
    sampling = SamplingParams(temperature=0.0)
    request = Request(id="a", prompt=PROMPT, sampling=sampling, seed=0, max_tokens=5)
    sequence = Sequence(request, block_table=[7, 2, 5, 3])
    step = jax.jit(partial(engine_step, config=config), donate_argnames="pool")

    chunk = Chunk(sequence, 0, len(PROMPT), 1)
    for _ in range(5):
        out, pool = step(params, pool, make_step(chunk))
        sequence.output.append(int(np.asarray(out.tokens)[0]))
        chunk = Chunk(sequence, chunk.start + chunk.length, 1, 1)

    assert sequence.output == greedy(config, params, list(PROMPT), 5)
    assert step._cache_size() == 1, "prefill and decode are one program here"
