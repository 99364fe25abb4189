"""Taps as values, and what the scheduler makes of requests that have some."""

import math
import sys
from collections.abc import Callable

import numpy as np
import pytest
from stories import make_request, make_scheduler, run_step, run_to_end, shape

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.host.taps import MAX_EDITS, MAX_TAPPED, AddVector, SetVector, Taps, ZeroHead, span

WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a fraction": (lambda: Taps(residual=(0.5,)), "residual must be a whole number, not 0.5"),
    "no list": (lambda: Taps(attention=3), "attention must be a list of whole numbers, not 3"),
    "too many layers": (lambda: Taps(attention=range(33)), "attention takes at most 32"),
    "no edit": (lambda: Taps(edits=("add",)), "must hold AddVector, SetVector or ZeroHead"),
    "no list of edits": (lambda: Taps(edits=ZeroHead(0, 0)), "edits must be a list"),
    "too many edits": (lambda: Taps(edits=(ZeroHead(0, 0),) * 65), "may hold 64 heads, not 65"),
    "no vector": (lambda: AddVector(0, "abc"), "a vector must hold numbers, not 'abc'"),
    "no finite vector": (lambda: SetVector(0, (math.nan,), 0), "must hold finite numbers"),
    "true": (lambda: ZeroHead(True, 0), "layer must be a whole number, not True"),
    "choices": (lambda: SamplingParams(n=2, taps=Taps()), "taps need n to be 1, not 2"),
    "something else": (lambda: SamplingParams(taps={}), "taps must be Taps, not {}"),
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG)
def test_what_is_no_tap_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        make()
    assert refused.value.param == "taps"


def test_numpy_s_numbers_become_plain_ones() -> None:
    edit = SetVector(np.int32(1), np.array([0.5, 2.0], np.float32), np.int64(-1))
    taps = Taps(residual=np.arange(2), edits=[edit])
    assert (edit.layer, edit.vector, edit.position) == (1, (0.5, 2.0), -1)
    assert taps.residual == (0, 1) and taps.edits == (edit,)


def test_spans_count_from_the_prompt_s_end_where_they_are_negative() -> None:
    assert span(AddVector(0, (), start=-1), 10)[0] == 9
    assert span(ZeroHead(0, 0, start=2, stop=-2), 10) == (2, 8)
    assert span(SetVector(0, (), -10), 10) == (0, 1)


@pytest.mark.parametrize(
    ("taps", "limit"),
    [
        (Taps(residual=(0,)), sys.maxsize),
        (Taps(attention=(0,)), 32),
        (Taps(attention=(0, 1, 2)), 10),
        (Taps(attention=tuple(range(32))), 1),
        (Taps(attention=(0, 1), positions=range(16)), sys.maxsize),
        (Taps(attention=(0, 1), positions=range(17)), 16),
    ],
)
def test_attention_rows_bound_the_chunk(taps: Taps, limit: int) -> None:
    assert make_request("a", [3], taps=taps).chunk_limit == limit


def test_a_prompt_whose_attention_is_read_comes_in_smaller_chunks_and_others_fill_the_step():
    scheduler = make_scheduler(budget=64)
    scheduler.add(make_request("a", range(3, 53), 2, taps=Taps(attention=(0, 1))))
    scheduler.add(make_request("b", range(3, 33), 2))
    assert shape(run_step(scheduler)) == [("a", 0, 16, 0), ("b", 0, 30, 1)]
    assert shape(run_step(scheduler)) == [("a", 16, 16, 0), ("b", 30, 1, 1)]
    run_to_end(scheduler)


def test_no_more_than_the_seats_run_and_those_without_taps_pass() -> None:
    scheduler = make_scheduler(max_seqs=8)
    for index in range(MAX_TAPPED + 2):
        scheduler.add(make_request(f"tapped {index}", range(3, 9), 3, taps=Taps()))
    scheduler.add(make_request("plain", range(3, 9), 3))
    names = [chunk.sequence.request.id for chunk in run_step(scheduler).chunks]
    assert names == [*(f"tapped {index}" for index in range(MAX_TAPPED)), "plain"]
    scheduler.abort("tapped 0")
    names = [chunk.sequence.request.id for chunk in run_step(scheduler).chunks]
    assert "tapped 4" in names and "tapped 5" not in names
    run_to_end(scheduler)


@pytest.mark.parametrize("partial_reuse", [False, True])
def test_tapped_sequences_neither_read_nor_fill_the_cache(partial_reuse: bool) -> None:
    scheduler = make_scheduler(partial_reuse=partial_reuse)
    for name, taps in (("a", Taps()), ("b", None), ("c", Taps())):
        sequence = scheduler.add(make_request(name, range(3, 26), 3, taps=taps))
        run_to_end(scheduler)
        assert sequence.num_cached == 0
    assert scheduler.prefix.queries == 23, "only b asks"
    again = scheduler.add(make_request("d", range(3, 26), 3))
    run_to_end(scheduler)
    assert again.num_cached >= 20


def test_as_many_edits_as_may_be() -> None:
    heads = tuple(ZeroHead(0, index) for index in range(MAX_EDITS))
    vectors = tuple(AddVector(0, (1.0,)) for _ in range(MAX_EDITS))
    taps = Taps(edits=(*heads, *vectors))
    assert (taps.heads, taps.vectors) == (heads, vectors)
