"""`bench blocks`: waste is half a block a sequence, and whole blocks find less of a prefix."""

import pytest

from paged_jax.bench import blocks
from paged_jax.bench.__main__ import main
from paged_jax.bench.blocks import largest_under, measure_blocks


@pytest.fixture(scope="module")
def figures() -> list[blocks.BlockFigures]:
    return measure_blocks([16, 256])


def test_measured_waste_is_that_of_the_formula_where_nothing_is_shared(figures) -> None:
    for name in ("short chat", "long documents"):
        for one in (one for one in figures if one.workload == name):
            assert one.waste == pytest.approx(one.expected_waste, rel=0.05)


def test_larger_blocks_find_less_of_a_prefix_than_single_tokens_would(figures) -> None:
    small, large = (one for one in figures if one.workload == "shared prefix")

    assert large.hit_rate < 0.9 * small.hit_rate
    assert small.hit_rate < small.token_hit_rate == large.token_hit_rate


def test_long_sequences_bear_larger_blocks(figures) -> None:
    assert largest_under(figures, 0.07)["short chat"] == 16
    assert largest_under(figures, 0.07)["long documents"] == 256


def test_all_of_it_is_drawn(figures, tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib", reason="the extra notebooks")
    monkeypatch.setenv("MPLBACKEND", "Agg")

    blocks.draw_picture(figures, {16: 1e-3, 256: 2e-3}, tmp_path / "picture.png")

    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_the_command_prints_a_table_and_times_attention(monkeypatch, capsys) -> None:
    monkeypatch.setattr(blocks, "WORKLOADS", {"short chat": blocks.WORKLOADS["short chat"]})

    main(["blocks", "--sizes", "8", "--quick"])

    head, row, attention, best = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["workload", "block"] and row.split()[:3] == ["short", "chat", "8"]
    assert attention.startswith("decode attention, blocks of 8:")
    assert best == "short chat: at most 4% is wasted up to blocks of 8"
