"""Run requests on one engine, or begin on one and end on another; collect what users see."""

from pathlib import Path

from mixed_load import make_load

from paged_jax.engine.engine import Engine
from paged_jax.outputs import CompletionOutput, RequestDelta

Seen = dict[tuple[str, int], CompletionOutput]  # by request and choice


def add_all(engine: Engine, count: int) -> None:
    for number, (prompt, params) in enumerate(zip(*make_load(count), strict=True)):
        engine.add(prompt, params, request_id=str(number))


def abort_all(engine: Engine) -> None:
    for sequence in engine.scheduler.sequences:
        engine.abort(sequence.request.id)


def absorb(seen: Seen, deltas: list[RequestDelta]) -> None:
    for delta in deltas:
        for choice in delta.choices:
            key = (delta.request_id, choice.index)
            seen.setdefault(key, CompletionOutput(choice.index)).absorb(choice)


def run(engine: Engine, num_steps: int = 1 << 30) -> Seen:
    seen: Seen = {}
    for _ in range(num_steps):
        if not engine.has_work:
            break
        absorb(seen, engine.step())
    return seen


def told(seen: Seen) -> dict[tuple[str, int], tuple]:
    return {
        key: (choice.token_ids, choice.text, choice.finish_reason, choice.stop_reason)
        for key, choice in sorted(seen.items())
    }


def run_on_two(first: Engine, second: Engine, path: Path, *, count: int, num_steps: int) -> Seen:
    """Run the load for some steps on one engine, and on from a snapshot on another."""
    add_all(first, count)
    begun = run(first, num_steps)
    first.snapshot(path)
    abort_all(first)
    seen: Seen = {key: choice for key, choice in begun.items() if choice.finished()}
    resumed: Seen = {}
    absorb(resumed, second.restore(path))
    second.scheduler.check()
    for key, choice in begun.items():
        if key in resumed:
            assert resumed[key].token_ids == choice.token_ids and resumed[key].text == choice.text
    while second.has_work:
        absorb(resumed, second.step())
        second.scheduler.check()
    return seen | resumed
