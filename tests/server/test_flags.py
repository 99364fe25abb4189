"""The flags: ranges, suffixes, suggestions, and one line for what is wrong."""

import subprocess
import sys

import pytest

from paged_jax.engine_args import EngineArgs
from paged_jax.flags import parse


def refusal(capsys, *argv):
    """The one line that a wrong command line is answered with."""
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_no_flags_are_the_defaults():
    options, args = parse([])
    assert args == EngineArgs()
    assert (options.host, options.port, options.served_model_name) == ("127.0.0.1", 8000, None)


@pytest.mark.parametrize(
    "flag",
    ["--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--block-size", "--port"],
)
@pytest.mark.parametrize("value", ["-7", "1000000000000", "abc", "1.5", ""])
def test_numbers_out_of_range_are_refused(capsys, flag, value):
    assert flag in refusal(capsys, flag, value)


@pytest.mark.parametrize("flag", ["--max-model-len", "--tensor-parallel-size", "--block-size"])
def test_zero_is_out_of_range(capsys, flag):
    assert flag in refusal(capsys, flag, "0")


@pytest.mark.parametrize(
    "argv",
    [
        ("--gpu-memory-utilization", "nan"),
        ("--gpu-memory-utilization", "1.5"),
        ("--dtype", "int3"),
        ("--kv-cache-memory", "2Gib"),
        ("--shutdown-timeout", "-1"),
        ("--log-stats-interval", "inf"),
        ("--log-level", "loud"),
        ("--max-model-len",),
        ("--api-key",),
    ],
    ids="=".join,
)
def test_wrong_value_names_its_flag(capsys, argv):
    assert argv[0] in refusal(capsys, *argv)


@pytest.mark.parametrize("name", ["--max-model-length", "--max_model_length=64"])
def test_misspelt_option_is_refused_with_a_suggestion(capsys, name):
    line = refusal(capsys, name)
    assert "--max-model-length" in line and "did you mean --max-model-len?" in line


def test_abbreviations_are_unknown_options(capsys):
    assert "--max-model-l" in refusal(capsys, "--max-model-l", "64")


def test_model_may_stand_alone_but_once(capsys):
    assert parse(["some/model", "--seed", "1"])[1].model == "some/model"
    assert parse(["--model", "some/model"])[1].model == "some/model"
    assert "--model" in refusal(capsys, "a", "--model", "b")


@pytest.mark.parametrize("flag", ["--max_model_len", "--max-model-len", "--max_model-len"])
@pytest.mark.parametrize("text, value", [("64", 64), ("32k", 32_000), ("32K", 32_768)])
def test_lengths_have_suffixes_and_underscores_are_dashes(flag, text, value):
    assert parse([flag, text])[1].max_model_len == value
    assert parse([f"{flag}={text}"])[1].max_model_len == value


@pytest.mark.parametrize("text, value", [("512MiB", 512 << 20), ("2GiB", 2 << 30), ("77", 77)])
@pytest.mark.parametrize("flag", ["--kv-cache-memory", "--kv-cache-memory-bytes"])
def test_sizes_have_binary_units(flag, text, value):
    assert parse([flag, text])[1].kv_cache_memory == value


def test_booleans_have_a_negative():
    assert parse([])[1].enable_prefix_caching
    assert not parse(["--no-enable-prefix-caching"])[1].enable_prefix_caching
    assert parse(["--disable-log-stats"])[1].disable_log_stats


def test_keys_and_names_may_be_several():
    argv = ["--api-key", "a", "--api-key", "b", "--served-model-name", "x", "y"]
    options, _ = parse(argv)
    assert options.api_key == ["a", "b"] and options.served_model_name == ["x", "y"]


def test_flags_of_other_servers_are_accepted_and_remembered():
    argv = ["--trust-remote-code", "--generation-config", "auto", "--tensor-parallel-size", "1"]
    options, _ = parse(argv)
    assert options.ignored == ["--trust-remote-code", "--generation-config"]


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_information_needs_no_jax(flag):
    program = (
        "import sys, paged_jax.serve\n"
        "try:\n    paged_jax.serve.main(sys.argv[1:])\n"
        "except SystemExit as ended:\n    assert not ended.code\n"
        "assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program, flag], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "paged_jax" in done.stdout


def test_tools_need_a_parser_and_parsers_are_known(capsys):
    assert "--tool-call-parser" in refusal(capsys, "--enable-auto-tool-choice")
    assert "hermes" in refusal(capsys, "--tool-call-parser", "pythonic")
    assert "qwen3" in refusal(capsys, "--reasoning-parser", "none")
    argv = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    options, _ = parse(argv)
    assert options.enable_auto_tool_choice and options.tool_call_parser == "hermes"
