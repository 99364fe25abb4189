"""python -m paged_jax.simulate, end to end."""

import json

import pytest

from paged_jax.simulate import main

SMALL = ("--num-requests", "12", "--prompt-lens", "8:64", "--output-lens", "4:16")


def test_the_baselines_stand_beside_each_other(capsys, tmp_path) -> None:
    out = tmp_path / "o.jsonl"

    main(["--compare", "baselines", *SMALL, "--output-json", str(out)])

    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["system", "tokens/s", "TTFT"]
    assert [row[:22].strip() for row in rows] == [
        "contiguous, static", "contiguous, continuous", "paged, static", "paged, continuous",
    ]  # fmt: skip
    use = [json.loads(line)["slot_use"] for line in out.read_text().splitlines()]
    assert max(use[:2]) < 0.1 < 0.7 < min(use[2:])


def test_policies_are_compared_on_a_trace(capsys, tmp_path) -> None:
    trace = tmp_path / "t"
    trace.write_text('{"at_s": 0, "prompt_len": 20, "max_tokens": 5}\n')

    main(["--compare", "policies", "--trace", str(trace)])

    assert len(capsys.readouterr().out.splitlines()) == 6


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--scheduling-policy", "x"), "--scheduling-policy must be one of"),
        (("--cost", "nowhere"), "--cost nowhere must be a file of bench step"),
        (("--rate", "0"), "--rate must be above 0"),
        (("--prompt-lens", "2000"), "max_model_len 1024"),
    ],
)
def test_a_wrong_option_ends_with_one_line_that_names_it(capsys, flags, named) -> None:
    with pytest.raises(SystemExit) as end:
        main([*SMALL, *flags])

    assert end.value.code == 2
    assert named in capsys.readouterr().err
