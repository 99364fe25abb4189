"""python -m paged_jax.replay FILE: do a run again that `--record FILE` wrote down.

Every decision is made anew and compared. `--step K` shows who held which blocks when step K had
been scheduled; `--on-engine`, with the engine's flags, generates again and compares the ids.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paged_jax.config import ModelError, OptionError
from paged_jax.engine_args import EngineArgs
from paged_jax.flags import add_engine_flags, read_engine_args
from paged_jax.host.block_map import block_map
from paged_jax.host.block_text import lines_of
from paged_jax.host.recording import request_from_json
from paged_jax.host.replay import Recording, Replay, ReplayError

if TYPE_CHECKING:
    from paged_jax.engine.engine import Engine

Outputs = dict[tuple[str, int], list[int]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command: code 1 if anything differs, 2 if an option is wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        recording = Recording.read(options.file)
        if options.step is not None:
            print(state_text(recording, options.step))
            return
        replay = Replay(recording).run()
        print(f"{recording.num_steps} steps of {len(replay.outputs)} sequences: the same decisions")
        if options.on_engine:
            compare_on_engine(read_engine_args(options), recording, replay.outputs)
            print(f"{sum(map(len, replay.outputs.values()))} tokens: the same ids")
    except ReplayError as error:
        parser.exit(1, f"{error}\n")
    except (OptionError, ModelError) as error:
        parser.exit(2, f"error: {error}\n")


def state_text(recording: Recording, step: int) -> str:
    """Return who held which blocks when step number `step` had been scheduled."""
    scheduler = Replay(recording).at(step).scheduler
    head = f"step {step}: {scheduler.num_running} running, {scheduler.num_waiting} waiting"
    return "\n".join([head, *lines_of(block_map(scheduler))])


def compare_on_engine(args: EngineArgs, recording: Recording, outputs: Outputs) -> None:
    """Generate again and raise ReplayError where an id differs."""
    from paged_jax.build import build_engine  # here, so that --help does not wait for jax

    engine = build_engine(replace(args, record=None))
    try:
        again = generate_again(engine, recording)
    finally:
        engine.close()
    for name, ids in outputs.items():
        if again.get(name, [])[: len(ids)] != ids:
            raise ReplayError(f"choice {name[1]} of {name[0]} has other ids: {again.get(name)}")


def generate_again(engine: "Engine", recording: Recording) -> Outputs:
    """Do a recording on an engine, a step for each of its steps; return the ids it draws."""
    outputs: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for event in recording.events:
        if event["event"] == "schedule":
            _step(engine, outputs)
        elif event["event"] == "abort":
            engine.abort(event["id"])
        elif event["event"] in ("add", "fork"):
            _submit(engine, event)
    while engine.has_work:
        _step(engine, outputs)
    return dict(outputs)


def _step(engine: "Engine", outputs: "defaultdict[tuple[str, int], list[int]]") -> None:
    for delta in engine.step():
        for choice in delta.choices:
            outputs[delta.request_id, choice.index] += choice.token_ids


def _submit(engine: "Engine", event: dict) -> None:
    request = request_from_json(event["request"])
    params = replace(request.sampling, seed=request.seed, max_tokens=request.max_tokens)
    if event["event"] == "add":
        engine.add(
            request.prompt, params, request_id=request.id, priority=request.priority,
            cache_salt=request.cache_salt,
        )  # fmt: skip
    else:
        parent, choice = event["parent"]
        engine.fork(parent, new_id=request.id, at=len(request.prompt), params=params, choice=choice)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.replay", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("file", type=Path, help="what --record wrote")
    parser.add_argument("--step", type=int, metavar="K", help="show the blocks at this step")
    parser.add_argument("--on-engine", action="store_true", help="generate again, compare ids")
    add_engine_flags(parser)
    return parser


if __name__ == "__main__":
    main()
