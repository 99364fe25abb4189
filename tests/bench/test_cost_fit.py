"""The cost model fitted to steps: what made them is found again."""

import json
from itertools import product

import pytest

from paged_jax.bench.cost_fit import Sample, fit_cost, read_samples
from paged_jax.config import OptionError
from paged_jax.host.step_cost import StepCost, StepSize

SIZES = [
    StepSize(t, s, s * c, p, t % 7)
    for t, s, c, p in product((8, 64, 75), (1, 8), (100, 900), (0, 5000))
]


def test_a_linear_model_is_found_again() -> None:
    cost = StepCost(1e-2, 2e-4, 3e-4, 4e-7, 5e-8, 1e-4)

    fit = fit_cost([Sample(size, cost.seconds(size)) for size in SIZES])

    assert fit.cost.fixed_s == pytest.approx(cost.fixed_s)
    assert fit.cost.pair_s == pytest.approx(cost.pair_s)
    assert fit.cost.padding_s == pytest.approx(cost.padding_s)
    assert fit.max_error < 1e-9


def test_no_coefficient_is_below_zero_and_the_residual_says_what_is_lost() -> None:
    cost = StepCost(1e-2, 2e-4, -1e-4, 4e-7, 5e-8, 1e-4)

    fit = fit_cost([Sample(size, cost.seconds(size)) for size in SIZES])

    assert fit.cost.seq_s == 0
    assert 0 < fit.rms_error < fit.max_error < 0.1


def test_lines_of_bench_step_are_read_with_their_padding(tmp_path) -> None:
    decode = {"kind": "decode", "num_seqs": 9, "num_tokens": 9, "context": 100.4, "median_s": 0.1}
    prefill = {"kind": "prefill", "num_seqs": 1, "num_tokens": 10, "context": 10, "median_s": 0.2}
    path = tmp_path / "steps"
    path.write_text(json.dumps(decode) + "\n" + json.dumps(prefill) + "\n")

    first, second = read_samples(path)

    assert first == Sample(StepSize(9, 9, 904, 0, 7), 0.1)
    assert second == Sample(StepSize(10, 1, 10, 55, 6), 0.2)


def test_too_few_steps_and_other_files_are_refused(tmp_path) -> None:
    with pytest.raises(OptionError, match="needs at least 6 measured steps, not 1"):
        fit_cost([Sample(SIZES[0], 1.0)])
    with pytest.raises(OptionError, match="must be a file of bench step"):
        read_samples(tmp_path / "missing")
