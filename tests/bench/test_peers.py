"""Peers through the pipe and over HTTP; the peer is a script that counts."""

import os
import sys
from pathlib import Path

import pytest

from paged_jax.bench.backends import PEERS, Peer, RunnerBackend, ServerBackend, server_command
from paged_jax.bench.datasets import BenchRequest
from paged_jax.config import OptionError

HERE = Path(__file__).parent
SERVER = HERE.parent / "server" / "serve_fake.py"
REQUESTS = [BenchRequest((1, 2, 40), 3), BenchRequest((7,), 2)]


def fake(**options: str) -> RunnerBackend:
    environment = {"PYTHONPATH": str(PEERS)}
    peer = Peer("fake", sys.executable, "m", options=options, environment=environment)
    return RunnerBackend(peer, HERE / "fake_runner.py")


def test_a_runner_answers_with_ids_and_times_whatever_it_prints() -> None:
    backend = fake(noise="1")
    try:
        first, second = backend.run(REQUESTS)
        backend.reset()
        again = backend.run(REQUESTS)
    finally:
        backend.close()

    assert (list(first.token_ids), list(second.token_ids)) == ([41, 42, 43], [8, 9])
    assert (first.prompt_len, first.output_len, first.error) == (3, 3, None)
    assert 0 < first.ttft_s <= first.latency_s
    assert [list(outcome.token_ids) for outcome in again] == [[41, 42, 43], [8, 9]]
    assert (backend.facts["name"], backend.facts["version"]) == ("fake", "7")
    assert backend.facts["load_s"] >= 0


def test_the_memory_of_a_runner_is_its_own() -> None:
    backend = fake()
    try:
        backend.run(REQUESTS)
        assert 1 << 20 < (backend.figures()["peak_rss_bytes"] or 0) < 200 << 20
    finally:
        backend.close()


def test_answers_of_the_wrong_length_are_failures() -> None:
    backend = fake(short="1")
    try:
        outcomes = backend.run(REQUESTS)
    finally:
        backend.close()

    assert [outcome.error for outcome in outcomes] == [
        "2 tokens came instead of 3",
        "1 tokens came instead of 2",
    ]


def test_a_runner_that_ends_early_is_quoted() -> None:
    backend = fake(fail="1")
    try:
        with pytest.raises(OptionError, match=r"fake ended early; .*the model is broken"):
            backend.run(REQUESTS)
    finally:
        backend.close()


def test_options_that_a_runner_does_not_have_are_named() -> None:
    with pytest.raises(OptionError, match="there is no option speed"):
        fake(speed="9")


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(OptionError, match="vllm cannot be started"):
        RunnerBackend(Peer("vllm", "/no/such/python", "m"))


def test_a_server_is_started_asked_and_ended() -> None:
    environment = {"PYTHONPATH": str(HERE.parents[1]), "STEP_S": "0"}
    peer = Peer("fake", sys.executable, "", environment=environment, max_concurrency=2)
    backend = ServerBackend(peer, [sys.executable, str(SERVER), "--port", "PORT"])
    try:
        outcomes = backend.run([BenchRequest((5, 6, 7), 4)] * 3)
        assert (backend.figures()["peak_rss_bytes"] or 0) > 1 << 20
    finally:
        backend.close()

    assert [(each.output_len, each.error) for each in outcomes] == [(4, None)] * 3
    assert not Path(f"/proc/{backend.pid}").exists()


def test_a_server_that_does_not_come_up_is_quoted() -> None:
    peer = Peer("broken", sys.executable, "")
    with pytest.raises(OptionError, match=r"broken ended early; .*no luck"):
        ServerBackend(peer, [sys.executable, "-c", "raise SystemExit('no luck')"])


def test_servers_are_started_with_their_options_as_flags() -> None:
    options = {"np": "4", "max_model_len": "64", "enable_prefix_caching": "false"}

    llama = server_command(Peer("llama.cpp", "ls", "m.gguf", threads=2, options=options), 9)
    own = server_command(Peer("paged_jax", "py", "m", options=options), 9)

    assert llama[:7] == ["ls", "-m", "m.gguf", "-t", "2", "-tb", "2"] and "-np" in llama
    assert own[:3] == ["py", "-m", "paged_jax.serve"]
    assert {"--max-model-len", "--no-enable-prefix-caching", "--port"} <= set(own)
    with pytest.raises(OptionError, match="openvino has no server"):
        server_command(Peer("openvino", "py", "m"), 9)


def test_threads_are_all_cores_unless_told() -> None:
    assert Peer("vllm", "py", "m").threads == len(os.sched_getaffinity(0))
