"""The engine's state as a value: captured between two steps, continued by another engine.

The parameters are not part of it; a fingerprint says which they were. Everything is checked before
anything of the engine that continues is changed.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from paged_jax.config import EngineConfig, ModelConfig
from paged_jax.device.kv_pool import KVPool, pool_dtype
from paged_jax.device.kv_rows import Rows, fit_heads, read_rows, row_shapes, write_rows
from paged_jax.engine.admission import check_request
from paged_jax.engine.executor import Executor
from paged_jax.engine.live_requests import LiveRequests
from paged_jax.engine.saved_requests import load_answer, load_request, save_answer, save_request
from paged_jax.engine.snapshot import EngineState
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.request import Request
from paged_jax.host.saved import (
    SavedSequence,
    SnapshotError,
    check_sequences,
    resume_sequences,
    save_sequences,
)
from paged_jax.models.fingerprint import fingerprint
from paged_jax.outputs import RequestDelta

OF_THE_MESH = ("num_kv_heads", "is_packed")  # of a ModelConfig: may differ


@dataclass(frozen=True)
class EngineCore:
    """The parts of an engine that have state, or that state depends on."""

    config: EngineConfig
    executor: Executor
    live: LiveRequests


def capture(core: EngineCore) -> EngineState:
    """Return what the engine is in the middle of; it stays as it is.

    Raises:
        SnapshotError: a beam search is running, a prompt is being embedded, a request has taps, or
            attention is a user's own.
    """
    if core.config.model.mods is not None:
        raise SnapshotError("a snapshot does not hold functions of yours (score_mod, mask_mod)")
    now_s, scheduler, answers = time.monotonic(), core.live.scheduler, core.live.answers
    sequences, slots = save_sequences(scheduler)
    in_order = sorted(scheduler.sequences, key=lambda sequence: sequence.rank)
    requests = {sequence.request.id: sequence.request for sequence in in_order}
    for request in requests.values():
        if request.sampling.beams is not None:
            raise SnapshotError(f"request {request.id!r} searches with beams: wait for its end")
        if request.sampling.pooling is not None:
            raise SnapshotError(f"request {request.id!r} is being embedded: wait for its end")
        if request.is_tapped:
            raise SnapshotError(f"request {request.id!r} has taps: wait for its end")
    facts = {
        "model": _model_facts(core.config),
        "model_name": core.config.model_name,
        "fingerprint": fingerprint(core.executor.params),
        "kv_dtype": pool_dtype(core.config.model, core.config.cache),
        "batch_invariant": core.config.batch_invariant,
        "num_rows": len(slots),
        "requests": [save_request(r, now_s, scheduler.max_len) for r in requests.values()],
        "answers": {key: save_answer(answers[key], now_s) for key in requests},
        "begun": {key: list(core.live.rules.begun(key)) for key in requests},
        "sequences": [asdict(sequence) for sequence in sequences],
    }
    return EngineState(facts, read_rows(core.executor.pool, slots) if slots else {})


def continue_state(state: EngineState, core: EngineCore) -> list[RequestDelta]:
    """Give the state to an idle engine, and return what each answer has told so far.

    Raises:
        SnapshotError: the state cannot be continued here; then nothing has changed.
    """
    facts, now_s = state.facts, time.monotonic()
    try:
        _check_model(facts, core)
        rows = _fitting_rows(state, core.executor.pool)
        eos_ids = core.config.model.eos_token_ids
        listed = [load_request(each, now_s, eos_ids) for each in facts["requests"]]
        requests = {request.id: request for request in listed}
        sequences = [_load_sequence(each) for each in facts["sequences"]]
        check_sequences(sequences, requests, facts["num_rows"])
        _check_requests(requests, sequences, core)
        answers = {key: (facts["answers"][key], tuple(facts["begun"][key])) for key in requests}
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise SnapshotError(
            f"the snapshot does not hold what it should ({error}): take it again"
        ) from error
    executor, live, told = core.executor, core.live, list[RequestDelta]()
    revived, writes = resume_sequences(live.scheduler, sequences, requests)
    if writes:
        executor.pool = write_rows(executor.pool, rows, writes)
    for key, request in requests.items():
        own = [sequence for sequence in revived if sequence.request.id == key]
        saved, begun = answers[key]
        live.rules.add(request, live.rules.compile(request.sampling), begun=begun)
        answer, choices = load_answer(saved, request, live.tokenizer, own, now_s)
        live.answers[key] = answer
        told.append(RequestDelta(key, tuple(choices), False, answer.num_cached))
    return told


def _model_facts(config: EngineConfig) -> dict[str, Any]:
    """What the model must be, in JSON's types; of a ModelConfig, what no mesh changes."""
    model = asdict(config.model)
    return {name: _plain(value) for name, value in model.items() if name not in OF_THE_MESH}


def _plain(value: Any) -> Any:
    """Tuples as lists, at any depth."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _check_model(facts: Mapping[str, Any], core: EngineCore) -> None:
    """Raise SnapshotError unless the state is one of this model, with such a pool."""
    name, mine = facts["model_name"], _model_facts(core.config)
    for spec in fields(ModelConfig):
        theirs, ours = facts["model"].get(spec.name), mine.get(spec.name)
        if theirs != ours:
            raise SnapshotError(
                f"the snapshot is of {name}, a model with {spec.name} {theirs}, but this one has "
                f"{ours}: load that model in the same way"
            )
    kind = pool_dtype(core.config.model, core.config.cache)
    if facts["kv_dtype"] != kind:
        raise SnapshotError(
            f"the snapshot's keys and values are {facts['kv_dtype']}, but this pool's are {kind}: "
            f"choose --kv-cache-dtype {facts['kv_dtype']}"
        )
    if core.config.batch_invariant and not facts.get("batch_invariant"):
        raise SnapshotError(
            "the snapshot was not taken with --batch-invariant, so its keys and values may differ "
            "in bits: leave it out here"
        )
    if facts["fingerprint"] != fingerprint(core.executor.params):
        raise SnapshotError(
            f"the snapshot is of {name} with other weights than these: load that model"
        )


def _fitting_rows(state: EngineState, pool: KVPool) -> Rows:
    """The rows with as many heads as the pool has.

    Raises:
        SnapshotError: they are not those of such a pool.
    """
    fitting = {}
    wanted = row_shapes(pool) if state.facts["num_rows"] else {}
    for name, (shape, dtype) in wanted.items():
        rows = state.rows[name]
        whole = (state.facts["num_rows"], rows.shape[1], *shape[1:])
        fitted = fit_heads(rows, shape[0])
        if rows.shape != whole or rows.dtype != np.dtype(dtype) or fitted is None:
            raise SnapshotError(
                f"the snapshot's {name} is {rows.dtype} {list(rows.shape)}, which does not fit "
                f"this pool of {dtype} {list(shape)}: load the model it was taken from"
            )
        fitting[name] = fitted
    return fitting


def _load_sequence(facts: dict[str, Any]) -> SavedSequence:
    runs = tuple((first, count) for first, count in facts["runs"])
    return SavedSequence(**(facts | {"output": tuple(facts["output"]), "runs": runs}))


def _check_requests(
    requests: Mapping[str, Request], sequences: list[SavedSequence], core: EngineCore
) -> None:
    """Raise SnapshotError unless this engine can bring every request to its end."""
    vocab, longest = core.config.model.vocab_size, core.live.scheduler.max_len
    for request in requests.values():
        try:
            check_request(request.prompt, request.sampling, core.config)
            core.live.rules.compile(request.sampling)
        except InvalidRequest as error:
            raise SnapshotError(f"request {request.id!r} cannot go on here: {error}") from error
        if len(request.prompt) + request.max_tokens > longest:
            raise SnapshotError(
                f"request {request.id!r} may become {len(request.prompt) + request.max_tokens} "
                f"tokens long, but sequences end at {longest} here: raise --max-model-len or give "
                "the KV pool more memory"
            )
    for sequence in sequences:
        if not all(type(token) is int and 0 <= token < vocab for token in sequence.output):
            raise SnapshotError(
                f"request {sequence.request_id!r} has a token outside the vocabulary of {vocab}: "
                "take the snapshot again"
            )
