"""The program as a process: start, signals, exit codes. The model is a FakeEngine."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from served_engine import eventually

HERE = Path(__file__).parent


def start(*flags: str, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    command = [sys.executable, str(HERE / "serve_fake.py"), "--port", "0", *flags]
    env = os.environ | {"PYTHONPATH": str(HERE.parents[1])} | (env or {})
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)


class Program:
    """serve_fake.py on a free port."""

    def __init__(self, *flags: str, env: dict[str, str] | None = None):
        self.process = start(*flags, env=env)
        self.lines: list[str] = []
        self.port = next(self._port_in(line) for line in self._stderr() if "running on" in line)
        threading.Thread(target=lambda: list(self._stderr()), daemon=True).start()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30)

    def _stderr(self):
        for line in self.process.stderr:
            self.lines.append(line)
            yield line

    @staticmethod
    def _port_in(line: str) -> int:
        return int(line.split("http://127.0.0.1:")[1].split()[0])

    def ask(self, max_tokens: int, *, stream: bool = True) -> "Asked":
        return Asked(self, {"prompt": "ab", "max_tokens": max_tokens, "stream": stream})

    def health(self) -> int | None:
        try:
            return self.http.get("/health").status_code
        except httpx.HTTPError:
            return None

    def load(self) -> int:
        return self.http.get("/load").json()["server_load"]


class Asked(threading.Thread):
    """A request in a thread of its own, with a connection of its own."""

    def __init__(self, program: Program, body):
        super().__init__()
        self._url = f"http://127.0.0.1:{program.port}/v1/completions"
        self._body, self.text, self.status = body, "", 0
        self.start()

    def run(self):
        try:
            response = httpx.post(self._url, json=self._body, timeout=30)
            self.status, self.text = response.status_code, response.text
        except httpx.HTTPError as error:
            self.text = repr(error)


@pytest.fixture
def program(request):
    flags, env = getattr(request, "param", ((), None))
    program = Program(*flags, env=env)
    yield program
    program.http.close()
    program.process.kill()
    program.process.wait()
    program.process.stderr.close()


@pytest.mark.parametrize("program", [(("--shutdown-timeout", "1.5"), None)], indirect=True)
def test_terminate_drains_and_then_leaves_with_0(program: Program):
    asked = [program.ask(60), program.ask(500), program.ask(500, stream=False)]
    assert eventually(lambda: program.load() == 3)
    program.process.send_signal(signal.SIGTERM)
    assert eventually(lambda: program.health() == 503)
    refused = program.http.post("/v1/completions", json={"prompt": "a"})
    assert refused.status_code == 503 and refused.json()["error"]["code"] == 503
    assert program.process.wait(20) == 0
    [thread.join() for thread in asked]
    short, long, whole = asked
    assert short.text.endswith("data: [DONE]\n\n") and '"length"' in short.text
    *_, failure, done = long.text.strip().split("\n\n")
    assert "shutting down" in failure and '"code":503' in failure and done == "data: [DONE]"
    assert whole.status == 503 and "shutting down" in whole.text
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", program.port))


SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@SIGNALS
def test_signal_during_start_ends_at_once(number):
    with start(env={"LOAD_S": "600"}) as process:
        assert process.stderr.readline() == "loading\n"
        process.send_signal(number)
        assert process.wait(20) == -number


@pytest.mark.parametrize("program", [((), {"FAIL_AFTER": "3"})], indirect=True)
def test_failed_engine_turns_health_red_and_ends_the_process_with_1(program: Program):
    asked = program.ask(9)
    asked.join()
    health = program.http.get("/health")
    assert health.status_code == 503 and "the engine failed: Boom" in health.text
    assert program.process.wait(20) == 1
    assert "Boom" in asked.text and asked.text.endswith("data: [DONE]\n\n")


@SIGNALS
def test_idle_server_leaves_with_0(program: Program, number):
    program.process.send_signal(number)
    assert program.process.wait(20) == 0


def test_second_signal_ends_at_once(program: Program):
    asked = program.ask(500)
    assert eventually(lambda: program.load() == 1)
    program.process.send_signal(signal.SIGINT)
    assert eventually(lambda: program.health() == 503)
    program.process.send_signal(signal.SIGINT)
    assert program.process.wait(20) == 128 + signal.SIGINT
    asked.join()


@pytest.mark.parametrize(
    "program",
    [(("--api-key", "one", "--served-model-name", "x", "y"), {"PAGED_JAX_API_KEY": "two"})],
    indirect=True,
)
def test_keys_of_flag_and_environment_open_the_api(program: Program):
    assert program.http.get("/v1/models").status_code == 401
    for key in ("one", "two"):
        response = program.http.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
        assert [card["id"] for card in response.json()["data"]] == ["x", "y"]


@pytest.mark.parametrize(
    "program", [(("--log-stats-interval", "0.2", "--enable-chunked-prefill"), None)], indirect=True
)
def test_load_is_logged_and_ignored_flags_are_told(program: Program):
    program.ask(100).join()
    assert eventually(lambda: any("Engine 000: Avg prompt" in line for line in program.lines))
    assert any("--enable-chunked-prefill is ignored" in line for line in program.lines)


def run_serve(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paged_jax.serve", *flags]
    env = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)


def test_port_in_use_is_told_before_the_model_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_serve("--model", "/no/such/model", "--port", port)
    assert done.returncode == 1
    assert f"port {port}" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def test_missing_model_is_one_last_line(tmp_path):
    done = run_serve("--model", str(tmp_path / "nothing"), "--port", "0")
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ") and "nothing" in last and "Traceback" not in done.stderr
