"""The compiled programs of one engine: made ahead of time, one per padded shape, and nothing after
warm-up.

A call with a shape that was not made is an error, not a compilation. Compilations that happen all
the same (some array operation outside the programs) are counted by `compile_counter`.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from paged_jax.compiled.step import BackboneOutput, backbone, draw, score
from paged_jax.config import EngineConfig
from paged_jax.device.draw_extras import DrawExtras, LogitsProcessor
from paged_jax.device.kv_pool import KVPool, copy_blocks, pool_dtype
from paged_jax.device.logprobs import SampleOutput
from paged_jax.device.sampling_rows import Draw, Masks, RowShape, SamplingRows, pack_rows
from paged_jax.device.sharding import POOL, REPLICATED, jit_on, make_mesh
from paged_jax.device.step_batch import BatchShape, StepBatch, empty_batch
from paged_jax.host.buckets import pick, row_buckets, token_buckets
from paged_jax.host.dry import MAX_DRY_IDS
from paged_jax.host.sampling_limits import MAX_BIAS_IDS, MAX_STOP_IDS
from paged_jax.models.params import ModelParams

logger = logging.getLogger("paged_jax")

FLOATS = ("float32", "bfloat16")
COPIES = 16  # block copies per call of the copy program
SCORES = 16  # prompt positions per call of the scoring program
COMPILE_THREADS = min(8, os.cpu_count() or 1)
ProgramKey = tuple[str, int]
Lower = Callable[[], Any]
Drawn = np.ndarray | jax.Array  # [max_seqs], the tokens a step drew, by row


class Programs:
    """The programs of one engine, by padded shape.

    Attributes:
        mesh: the devices; None is the one there is.
        draw_mesh: of these, those that draw.
        token_buckets: sizes of the packed token axis.
        row_buckets: numbers of rows that are sampled together.
        compile_seconds: of each program, by what it is and its padded size.
        announce: told of each call, with all its arguments, before it is made.
    """

    def __init__(self, config: EngineConfig, processor: LogitsProcessor | None = None):
        self.config = config
        self._has_processor = processor is not None
        extras = DrawExtras(config.logprobs_mode, processor)
        self.token_buckets, self.row_buckets = _buckets(config)
        model, scored = config.model, config.max_logprobs
        is_invariant = config.batch_invariant
        self._backbone = partial(backbone, config=model, is_batch_invariant=is_invariant)
        self._draw = partial(draw, config=model, max_logprobs=scored, extras=extras)
        self._score = partial(score, config=model, max_logprobs=scored)
        self.mesh = self.draw_mesh = make_mesh(config.mesh)
        self._compiled: dict[ProgramKey, Any] = {}
        self.compile_seconds: dict[ProgramKey, float] = {}
        self.announce: Callable[[ProgramKey, tuple[Any, ...]], None] | None = None

    def nothing_drawn(self) -> np.ndarray:
        """Return what stands for the drawn tokens before the first draw."""
        return np.zeros(self.config.scheduler.max_seqs, np.int32)

    def batch_shape(self, num_tokens: int) -> BatchShape:
        """Return the padded shape of a step of `num_tokens`."""
        limits, block_size = self.config.scheduler, self.config.cache.block_size
        tokens = pick(self.token_buckets, num_tokens)
        max_blocks = -(-limits.max_model_len // block_size)
        return BatchShape(tokens, min(tokens, limits.max_seqs), max_blocks, limits.max_seqs)

    def pack_rows(self, drawn: Sequence[Draw], masks: Masks) -> SamplingRows:
        """Return the sampling rows of a step's draws, padded."""
        rows = pack_rows(drawn, self._row_shape(len(drawn)), masks)
        return replace(rows, is_plain=rows.is_plain and not self.config.batch_invariant)

    def neutral_rows(self, num_rows: int, *, is_plain: bool) -> SamplingRows:
        """Return sampling rows that ask for nothing."""
        return replace(pack_rows([], self._row_shape(num_rows)), is_plain=is_plain)

    def _row_shape(self, num_rows: int) -> RowShape:
        own = MAX_BIAS_IDS + MAX_DRY_IDS
        biases = own + MAX_STOP_IDS + len(self.config.model.eos_token_ids)
        context = self.config.scheduler.max_model_len
        words = -(-self.config.model.vocab_size // 32)
        rows = pick(self.row_buckets, num_rows)
        return RowShape(rows, context, biases, words, self._has_processor)

    def lower_backbone(self, params: ModelParams, pool: KVPool, tokens: int) -> Any:
        """Trace the backbone for a token bucket; `pool` may be abstract."""
        batch = empty_batch(self.batch_shape(tokens))
        arguments = (params, pool, batch, self.nothing_drawn())
        return self._lower(self._backbone, arguments, outs=(REPLICATED, POOL), donate=(1,))

    def warm_up(self, params: ModelParams, pool: KVPool) -> None:
        """Compile every program, largest first, with a progress bar."""
        if self.config.enforce_eager:
            return
        start = time.monotonic()
        made = _compile_all(list(self._jobs(params, pool)))
        self._compiled = {key: program for key, (program, _) in made.items()}
        self.compile_seconds = {key: seconds for key, (_, seconds) in made.items()}
        logger.info("Compiled %d programs in %.1f s", len(self._compiled), time.monotonic() - start)

    def _jobs(self, params: ModelParams, pool: KVPool) -> Iterator[tuple[ProgramKey, Lower]]:
        """Each program's key, and what traces it."""
        yield from self.backbone_jobs(params, pool)
        yield from self._draw_jobs(self.head(params))
        yield from self.copy_jobs(pool)

    def head(self, params: ModelParams) -> ModelParams:
        """Return the parameters that the programs that draw take."""
        return params

    def backbone_jobs(
        self, params: ModelParams, pool: KVPool
    ) -> Iterator[tuple[ProgramKey, Lower]]:
        """Each backbone's key, and what traces it, largest first."""
        for tokens in reversed(self.token_buckets):
            yield ("backbone", tokens), partial(self.lower_backbone, params, pool, tokens)

    def _draw_jobs(self, params: ModelParams) -> Iterator[tuple[ProgramKey, Lower]]:
        limits = self.config.scheduler
        embed, dtype = self.config.model.embed_dim, self.config.model.activation_dtype
        sampled = jax.ShapeDtypeStruct((limits.max_seqs, embed), dtype)
        for rows in reversed(self.row_buckets):
            for name, is_plain in (("draw plain", True), ("draw", False)):
                if is_plain and self.config.batch_invariant:
                    continue
                neutral = self.neutral_rows(rows, is_plain=is_plain)
                yield (name, rows), partial(self._lower, self._draw, (params, sampled, neutral))
        hidden = jax.ShapeDtypeStruct((SCORES, embed), dtype)
        targets = np.zeros(SCORES, np.int32)
        yield ("score", SCORES), partial(self._lower, self._score, (params, hidden, targets))

    def copy_jobs(self, pool: KVPool) -> Iterator[tuple[ProgramKey, Lower]]:
        """The program that copies blocks."""
        ids = np.zeros(COPIES, np.int32)
        copy = partial(self._lower, copy_blocks, (pool, ids, ids), outs=POOL, donate=(0,))
        yield ("copy", COPIES), copy

    def _lower(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        outs: Any = REPLICATED,
        donate: tuple[int, ...] = (),
    ) -> Any:
        mesh = self.draw_mesh
        return jit_on(mesh, function, arguments, outs=outs, donate=donate).lower(*arguments)

    def call(self, name: str, size: int, eager: Callable[..., Any], *arguments: Any) -> Any:
        """Call a compiled program, or in eager mode the function it was made of."""
        if self.config.enforce_eager:
            with jax.disable_jit():
                return eager(*jax.tree.map(jnp.asarray, arguments))
        if (name, size) not in self._compiled:
            sizes = ", ".join(str(other) for kind, other in self._compiled if kind == name)
            raise ValueError(f"no program {name} {size} was compiled; its sizes are {sizes}")
        if self.announce is not None:
            self.announce((name, size), arguments)
        return self._compiled[name, size](*arguments)

    def run_backbone(
        self, params: ModelParams, pool: KVPool, batch: StepBatch, drawn: Drawn
    ) -> tuple[BackboneOutput, KVPool]:
        """Run the layers. Donate: pool."""
        size = batch.tokens.shape[0]
        return self.call("backbone", size, self._backbone, params, pool, batch, drawn)

    def run_draw(
        self, params: ModelParams, out: BackboneOutput, rows: SamplingRows
    ) -> tuple[SampleOutput, Drawn]:
        """Draw one token per row; return the tokens also as the next backbone takes them."""
        name, size = "draw plain" if rows.is_plain else "draw", rows.positions.shape[0]
        return self.call(name, size, self._draw, self.head(params), out.sampled, rows)

    def run_copies(self, pool: KVPool, copies: tuple[tuple[int, int], ...]) -> KVPool:
        """Copy blocks (source, target) in the scheduler's order, COPIES a call. Donate: pool.

        A block may be freed as a source and become a later copy's target in the same step, never
        the reverse.
        """
        assert len({target for _, target in copies}) == len(copies), "a block is copied to twice"
        for start in range(0, len(copies), COPIES):
            group = copies[start : start + COPIES]
            pairs = np.zeros((2, COPIES), np.int32)
            pairs[:, : len(group)] = np.asarray(group, np.int32).T
            pool = self.copy(pool, pairs[0], pairs[1])
        return pool

    def copy(self, pool: KVPool, source: np.ndarray, target: np.ndarray) -> KVPool:
        """Copy COPIES blocks. Donate: pool."""
        return self.call("copy", COPIES, copy_blocks, pool, source, target)

    def run_score(
        self, params: ModelParams, out: BackboneOutput, at: int, targets: Sequence[int]
    ) -> Iterator[SampleOutput]:
        """Score `targets[i]` after packed token `at + i`; yield SCORES positions a time."""
        hidden = np.asarray(out.hidden)
        for start in range(0, len(targets), SCORES):
            wanted = targets[start : start + SCORES]
            ids, rows = (
                np.zeros(SCORES, np.int32),
                np.zeros_like(hidden[:SCORES], shape=(SCORES, hidden.shape[1])),
            )
            ids[: len(wanted)] = wanted
            rows[: len(wanted)] = hidden[at + start : at + start + len(wanted)]
            yield self.score(params, rows, ids)

    def score(self, params: ModelParams, hidden: np.ndarray, targets: np.ndarray) -> SampleOutput:
        """Score one target after each of SCORES hidden states."""
        return self.call("score", SCORES, self._score, self.head(params), hidden, targets)

    def measure(self, params: ModelParams, pool: KVPool) -> int:
        """Compile the largest backbone for an abstract pool; return the bytes it needs itself."""
        return own_bytes(self.lower_backbone(params, pool, self.token_buckets[-1]).compile())

    def text(self, key: ProgramKey) -> str:
        """Return what XLA made of a program, as its own text (HLO)."""
        return self._compiled[key].as_text()

    def memory(self, key: ProgramKey) -> Any:
        """Return XLA's memory analysis of a compiled program."""
        return self._compiled[key].memory_analysis()

    def peak_bytes(self) -> int:
        """Return the most a compiled program needs beside its arguments.

        Only the largest of each kind is asked: an answer takes a tenth of a second.
        """
        largest = {name: self._compiled[name, size] for name, size in sorted(self._compiled)}
        return max(map(own_bytes, largest.values()), default=0)


def _buckets(config: EngineConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes for packed tokens and for sampled rows: where all steps are to be alike, one each."""
    most_tokens, most_rows = config.scheduler.max_tokens_per_step, config.scheduler.max_seqs
    if config.batch_invariant:
        return (most_tokens,), (most_rows,)
    has_kernels = config.model.is_packed and pool_dtype(config.model, config.cache) in FLOATS
    smallest = 1 if has_kernels else 2
    return token_buckets(most_tokens, smallest=smallest), row_buckets(most_rows)


def _compile_all(jobs: list[tuple[ProgramKey, Lower]]) -> dict[ProgramKey, tuple[Any, float]]:
    """Return each program and the seconds it took to compile or to read from the cache.

    Trace in this thread, since Python does that, and compile in a few others meanwhile.

    The first program that does not compile raises; those not begun are dropped then.
    """
    with ThreadPoolExecutor(COMPILE_THREADS, "compile") as workers:
        try:
            keys = {workers.submit(_timed, lower().compile): key for key, lower in jobs}
            done = as_completed(keys)
            bar = tqdm(done, "Compiling", len(keys), unit="program", disable=None)
            return {keys[program]: program.result() for program in bar}
        except BaseException:
            workers.shutdown(cancel_futures=True)
            raise


def _timed(compile_: Lower) -> tuple[Any, float]:
    start = time.monotonic()
    return compile_(), time.monotonic() - start


def own_bytes(program: Any) -> int:
    """Temporary memory plus outputs that are not donated arguments."""
    analysis = program.memory_analysis()
    if analysis is None:
        return 0
    return (
        analysis.temp_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    )
