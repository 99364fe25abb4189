"""Two real processes with two virtual devices each serve as one engine, and end as one."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tiny import make_tiny_folder

from paged_jax import LLM, BeamSearchParams, SamplingParams, StructuredOutputsParams

SIZES = {"num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 64}
OPTIONS = {
    "dtype": "float32",
    "max_model_len": 64,
    "max_num_batched_tokens": 8,
    "max_num_seqs": 2,
    "num_gpu_blocks_override": 33,
}
CACHE = str(Path(__file__).parents[2] / ".cache" / "xla")
END_S = 30
# Two devices each; compiled sooner, as JAX keeps no programs of several processes on CPUs.
FLAGS = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
KINDS: list[dict] = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 1, "seed": 4, "top_p": 0.8, "n": 2},
    {"temperature": 0, "presence_penalty": 1.5},
    {"temperature": 0, "logprobs": 2, "prompt_logprobs": 1},
    {"temperature": 1, "seed": 5, "structured_outputs": {"regex": "[ab]{2,4}"}},
    {"n": 2, "use_beam_search": True},
]


def bodies() -> list[dict]:
    """A hundred requests of all kinds; every ninth begins with a block that is cached."""
    common = list(range(50, 67))
    prompts = [
        common * (i % 9 == 0) + [3 + (7 * i + j) % 250 for j in range(3 + i % 6)]
        for i in range(100)
    ]
    return [
        {"prompt": prompt, "max_tokens": 2 + i % 4} | KINDS[i % len(KINDS)]
        for i, prompt in enumerate(prompts)
    ]


class TwoHosts:
    """Rank 0, which serves, and rank 1."""

    def __init__(self, model: Path, ports: tuple[int, int]):
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
        flags += ["--nnodes=2", f"--master-port={ports[1]}", "--tensor-parallel-size=4"]
        command = [sys.executable, "-m", "paged_jax.serve", str(model), f"--port={ports[0]}"]
        environment = os.environ | {"XLA_FLAGS": FLAGS, "JAX_COMPILATION_CACHE_DIR": CACHE}
        self.ranks = [
            subprocess.Popen(
                [*command, *flags, f"--node-rank={rank}"],
                stderr=subprocess.PIPE, text=True, env=environment,
            )
            for rank in (0, 1)
        ]  # fmt: skip
        self.url = f"http://127.0.0.1:{ports[0]}"
        for line in self.ranks[0].stderr:
            if "running on http" in line:
                return
        raise AssertionError(self.ranks[1].communicate()[1][-2000:])

    def ask(self, body: dict) -> list[str]:
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=120)
        answer.raise_for_status()
        return [choice["text"] for choice in answer.json()["choices"]]

    def health(self) -> tuple[int, str]:
        answer = httpx.get(f"{self.url}/health", timeout=10)
        return answer.status_code, answer.text

    def lose(self, rank: int, how: signal.Signals) -> list[Future]:
        """Do that to a rank in the middle of the load; return the requests, all of them ended."""
        with ThreadPoolExecutor(8) as clients:
            asked = [clients.submit(self.ask, body) for body in bodies()]
            asked[4].result()
            self.ranks[rank].send_signal(how)
        return asked

    def wait_until_red(self) -> str:
        """Return the reason that /health gives."""
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline:
            status, text = self.health()
            if status == 503:
                return text
            time.sleep(0.05)
        raise AssertionError("/health stayed green")

    def end(self, *ranks: int) -> list[tuple[int, str]]:
        """Wait for ranks to end; return their exit codes and what they wrote."""
        ended = [(self.ranks[rank], self.ranks[rank].communicate(timeout=END_S)) for rank in ranks]
        return [(process.returncode, written) for process, (_, written) in ended]

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.communicate()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_folder(tmp_path_factory.mktemp("hosts") / "model", **SIZES)


@pytest.fixture(scope="module")
def ports() -> tuple[int, int]:
    """The HTTP port, and the first of two for the ranks."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return one.getsockname()[1], two.getsockname()[1]


@pytest.fixture(scope="module")
def hosts(model, ports) -> Iterator[TwoHosts]:
    """Serve every test that does not need hosts of its own; the last one ends them."""
    yield from started(model, ports)


@pytest.fixture
def fresh(model, ports) -> Iterator[TwoHosts]:
    """Hosts of their own, on the same ports."""
    yield from started(model, ports)


def started(model: Path, ports: tuple[int, int]) -> Iterator[TwoHosts]:
    made = TwoHosts(model, ports)
    try:
        yield made
    finally:
        made.kill()


def answers_of_one_process(model: Path) -> list[list[str]]:
    """What one process with one device answers."""
    with LLM(model, **OPTIONS) as llm:
        asked = [body for body in bodies() if "use_beam_search" not in body]
        params = [params_of(**body) for body in asked]
        outputs = llm.generate([body["prompt"] for body in asked], params, use_tqdm=False)
        texts = iter([choice.text for choice in output.outputs] for output in outputs)
        return [
            beams_of(llm, **body) if "use_beam_search" in body else next(texts) for body in bodies()
        ]


def params_of(*, prompt: list[int], structured_outputs: dict | None = None, **rest):
    form = structured_outputs and StructuredOutputsParams(**structured_outputs)
    return SamplingParams(structured_outputs=form, **rest)


def beams_of(llm: LLM, *, prompt: list[int], n: int, max_tokens: int, **_: object) -> list[str]:
    search = BeamSearchParams(beam_width=n, max_tokens=max_tokens)
    (output,) = llm.beam_search([prompt], search)
    text = llm.get_tokenizer().decode(prompt)
    return [beam.text.removeprefix(text) for beam in output.sequences]


def test_a_hundred_requests_are_answered_as_by_one_process(hosts, model) -> None:
    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(hosts.ask, bodies()))
    assert answers == answers_of_one_process(model)


def test_the_loss_of_a_rank_ends_both_and_says_why(hosts) -> None:
    with ThreadPoolExecutor(1) as watcher:
        reason = watcher.submit(hosts.wait_until_red)
        asked = hosts.lose(1, signal.SIGKILL)

        ((code, text),) = hosts.end(0)

    assert code == 1 and "error: rank 1 is lost" in text
    assert "rank 1 is lost" in reason.result()
    failed = [request.exception() for request in asked if request.exception()]
    assert failed and not any(isinstance(error, httpx.TimeoutException) for error in failed)


@pytest.mark.slow
def test_after_a_loss_the_same_ports_serve_again_and_end_in_order(fresh) -> None:
    assert len(fresh.ask({"prompt": "again", "max_tokens": 2})) == 1
    fresh.ranks[0].terminate()
    assert [code for code, _ in fresh.end(0, 1)] == [0, 0]


@pytest.mark.slow
def test_the_loss_of_rank_0_ends_the_other(fresh) -> None:
    fresh.lose(0, signal.SIGKILL)
    ((code, text),) = fresh.end(1)
    assert code != 0 and "error: rank 0 is lost" in text


@pytest.mark.slow
@pytest.mark.parametrize("stuck", [0, 1])
def test_a_stuck_rank_ends_the_other_and_then_itself(fresh, stuck) -> None:
    with ThreadPoolExecutor(1) as clients:
        begun = time.monotonic()
        clients.submit(fresh.lose, stuck, signal.SIGSTOP)
        ((code, text),) = fresh.end(1 - stuck)
        assert code == 1 and f"error: rank {stuck} has been silent for 15 s" in text
        fresh.ranks[stuck].send_signal(signal.SIGCONT)
        ((code, text),) = fresh.end(stuck)
    assert code == 1 and f"error: rank {1 - stuck} is lost" in text
    assert time.monotonic() - begun < 60
