"""Figures against cases worked out by hand."""

import pytest

from paged_jax.bench.metrics import Outcome, read_goodput, summarise
from paged_jax.config import OptionError

# Starts at 10 s, tokens at 10.1, 10.2, 10.5: TTFT 100 ms, TPOT (0.5 - 0.1) / 2 = 200 ms.
FIRST = Outcome(prompt_len=4, output_len=3, start_s=10.0, times_s=(10.1, 10.2, 10.5))
# TTFT 300 ms, one gap of 400 ms: TPOT 400 ms, E2EL 700 ms.
SECOND = Outcome(prompt_len=6, output_len=2, start_s=10.0, times_s=(10.3, 10.7))
FAILED = Outcome(prompt_len=5, output_len=0, start_s=10.0, error="refused")


def test_rates_divide_what_succeeded_by_the_wall_time() -> None:
    figures = summarise([FIRST, SECOND, FAILED], 2.0)

    assert (figures["completed"], figures["failed"]) == (2, 1)
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (10, 5)
    assert figures["request_throughput"] == 1.0
    assert figures["output_throughput"] == 2.5
    assert figures["total_token_throughput"] == 7.5


def test_latencies_are_per_request_and_gaps_are_over_all() -> None:
    figures = summarise([FIRST, SECOND], 1.0)

    assert figures["mean_ttft_ms"] == pytest.approx(200)
    assert figures["mean_tpot_ms"] == pytest.approx(300)
    assert figures["mean_e2el_ms"] == pytest.approx(600)
    assert figures["mean_itl_ms"] == pytest.approx((100 + 300 + 400) / 3)
    assert figures["median_itl_ms"] == pytest.approx(300)


def test_percentiles_interpolate() -> None:
    figures = summarise([FIRST, SECOND], 1.0, percentiles=(50, 90, 99.9))

    assert figures["p50_ttft_ms"] == pytest.approx(200)
    assert figures["p90_ttft_ms"] == pytest.approx(280)
    assert figures["p99.9_ttft_ms"] == pytest.approx(299.8)
    assert figures["std_ttft_ms"] == pytest.approx(100)


def test_events_of_several_tokens_count_their_tokens_in_tpot() -> None:
    merged = Outcome(prompt_len=1, output_len=5, start_s=0.0, times_s=(1.0, 1.8))

    assert merged.tpot_s == pytest.approx(0.2)
    assert merged.itls_s == pytest.approx([0.8])


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({"ttft": 150.0}, 1), ({"ttft": 400.0, "tpot": 250.0}, 1), ({"e2el": 700.1}, 2)],
)
def test_goodput_counts_requests_within_every_limit(limits, expected) -> None:
    figures = summarise([FIRST, SECOND, FAILED], 2.0, goodput=limits)

    assert figures["request_goodput"] == expected / 2


def test_goodput_is_read_from_words_and_wrong_words_are_named() -> None:
    assert read_goodput(["ttft:500", "tpot:50"]) == {"ttft": 500.0, "tpot": 50.0}
    assert read_goodput(None) is None
    for word in ("ttft", "itl:5", "ttft:-1", "tpot:x"):
        with pytest.raises(OptionError, match=word):
            read_goodput([word])


def test_peaks_are_the_fullest_second_and_the_most_overlap() -> None:
    late = Outcome(prompt_len=1, output_len=4, start_s=12.0, times_s=(12.1, 12.2))

    figures = summarise([FIRST, SECOND, late], 3.0)

    assert figures["max_output_tokens_per_s"] == 5.0
    assert figures["max_concurrent_requests"] == 2


def test_a_run_in_which_all_failed_has_figures_too() -> None:
    figures = summarise([FAILED], 1.0)

    assert (figures["completed"], figures["failed"]) == (0, 1)
    assert figures["p99_ttft_ms"] == 0.0
    assert figures["max_concurrent_requests"] == 0
