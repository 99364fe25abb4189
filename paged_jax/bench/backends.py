"""Peers as things to measure: a runner script in the peer's own environment, or a server.

Both are processes of their own; their memory and CPU time are those of all their descendants.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from paged_jax.bench.client import Ask, Endpoint, HttpError, fetch
from paged_jax.bench.datasets import BenchRequest
from paged_jax.bench.load import Pace, send_all
from paged_jax.bench.machine import peak_rss_bytes, thread_environment
from paged_jax.bench.metrics import Figures, Outcome
from paged_jax.bench.scrape import watched
from paged_jax.config import OptionError

PEERS = Path(__file__).parent / "peers"
START_S = 600.0  # for a server to load and compile


@dataclass(frozen=True)
class Peer:
    """What to start.

    Attributes:
        name: "transformers", "vllm", "openvino", "paged_jax", "llama.cpp", "transformers-server".
        program: the peer's own Python; for llama.cpp its llama-server.
        model: a folder or file in the format the peer reads.
        options: the peer's own settings.
        max_concurrency: requests under way at once at a server; None is no limit.
    """

    name: str
    program: str
    model: str
    dtype: str = "bfloat16"
    threads: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    options: Mapping[str, str] = field(default_factory=dict)
    max_concurrency: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


class Child:
    """A process and the log of what it says; it ends with this one's `close`."""

    def __init__(self, command: Sequence[str], peer: Peer, *, has_pipes: bool):
        self.log = tempfile.TemporaryFile("w+")
        pipe = subprocess.PIPE if has_pipes else None
        environment = {**os.environ, **thread_environment(peer.threads), **peer.environment}
        try:
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe or self.log, stderr=self.log, text=True,
                env=environment,
            )  # fmt: skip
        except OSError as error:
            self.log.close()
            raise OptionError(f"{peer.name} cannot be started: {error}") from error
        self.name = peer.name

    def failure(self) -> OptionError:
        """Return an error with the last lines of the log."""
        self.log.seek(0)
        lines = [line.rstrip() for line in self.log if line.strip()]
        return OptionError(f"{self.name} ended early; its last lines: {' | '.join(lines[-4:])}")

    def close(self) -> None:
        """End the process, by force if it takes long."""
        if self.process.stdin is not None:
            with suppress(OSError):  # it may have left with a message unread
                self.process.stdin.close()
        else:
            self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()


class RunnerBackend:
    """A peer that is asked through a pipe; see `peers/wire.py`.

    Attributes:
        facts: what the peer says of itself: name, version, load_s.
    """

    def __init__(self, peer: Peer, script: Path | None = None):
        script = script or PEERS / f"{peer.name}_runner.py"
        options = {
            "model": peer.model, "dtype": peer.dtype, "threads": str(peer.threads), **peer.options
        }  # fmt: skip
        command = [peer.program, str(script), json.dumps(options)]
        self._child = Child(command, peer, has_pipes=True)
        self.pid = self._child.process.pid
        self._figures: Figures = {}
        try:
            self.facts = self._read()
        except OptionError:
            self._child.close()
            raise

    def run(self, requests: Sequence[BenchRequest]) -> list[Outcome]:
        """Generate for all requests, submitted at once."""
        listed = [{"prompt": each.prompt, "max_tokens": each.max_tokens} for each in requests]
        start = time.perf_counter()
        answer = self._ask({"run": listed})
        self._figures = answer["figures"]
        return [
            _checked(request, Outcome(len(request.prompt), len(ids), start, times, None, ids))
            for request, times, ids in zip(requests, answer["times"], answer["ids"], strict=True)
        ]

    def figures(self) -> Figures:
        """Return the peak memory, and what else the peer knows."""
        return {**self._figures, "peak_rss_bytes": peak_rss_bytes(self.pid)}

    def reset(self) -> None:
        """Forget cached prefixes."""
        self._ask({"reset": True})

    def close(self) -> None:
        """End the peer."""
        self._child.close()

    def _ask(self, message: Mapping[str, object]) -> dict:
        pipe = self._child.process.stdin
        assert pipe is not None, "started with pipes"
        try:
            pipe.write(json.dumps(message) + "\n")
            pipe.flush()
        except OSError as error:
            raise self._child.failure() from error
        return self._read()

    def _read(self) -> dict:
        pipe = self._child.process.stdout
        assert pipe is not None, "started with pipes"
        line = pipe.readline()
        if not line:
            self._child.process.wait()
            raise self._child.failure()
        return json.loads(line)


class ServerBackend:
    """A peer's HTTP server, started here and asked by streaming clients.

    Attributes:
        facts: name and the seconds until it answered.
    """

    def __init__(self, peer: Peer, command: Sequence[str] | None = None):
        port = free_port()
        self._peer, self._figures = peer, {}
        self._endpoint = Endpoint("127.0.0.1", port)
        start = time.perf_counter()
        command = command or server_command(peer, port)
        self._child = Child([word.replace("PORT", str(port)) for word in command], peer,
            has_pipes=False)  # fmt: skip
        self.pid = self._child.process.pid
        try:
            self._model = asyncio.run(self._ready())
        except BaseException:
            self._child.close()
            raise
        load_s = time.perf_counter() - start
        self.facts = {"name": peer.name, "version": Path(peer.program).name, "load_s": load_s}

    def run(self, requests: Sequence[BenchRequest]) -> list[Outcome]:
        """Send all requests, up to `max_concurrency` at once."""
        extra = {"samplers": ["temperature"]} if self._peer.name == "llama.cpp" else {}
        questions = [self._question(request, extra) for request in requests]
        pace = Pace(max_concurrency=self._peer.max_concurrency)
        work = watched(self._endpoint, send_all(self._endpoint, questions, pace))
        (outcomes, _), self._figures = asyncio.run(work)
        return [_checked(*pair) for pair in zip(requests, outcomes, strict=True)]

    def figures(self) -> Figures:
        """Return the peak memory of the server's processes, and what its /metrics say."""
        return {**self._figures, "peak_rss_bytes": peak_rss_bytes(self.pid)}

    def reset(self) -> None:
        """Servers keep what they have cached; requests of another seed do not meet it."""

    def close(self) -> None:
        """End the server."""
        self._child.close()

    def _question(self, request: BenchRequest, extra: Mapping[str, object]) -> Ask:
        body = {
            "model": self._model, "prompt": request.prompt, "max_tokens": request.max_tokens,
            "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, **extra,
        }  # fmt: skip
        return Ask("/v1/completions", body, len(request.prompt))

    async def _ready(self) -> str:
        """Wait until the server answers; return the name of its model."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._child.process.poll() is not None:
                raise self._child.failure()
            try:
                await fetch(self._endpoint, "/health")
                listed = json.loads(await fetch(self._endpoint, "/v1/models"))
                return listed["data"][0]["id"]
            except (OSError, EOFError, HttpError):
                await asyncio.sleep(0.25)
        raise OptionError(f"{self._peer.name} did not answer within {START_S:.0f} s")


def server_command(peer: Peer, port: int) -> list[str]:
    """Return how a peer's server is started; its options become flags."""
    flags = [word for name, value in peer.options.items() for word in _flag(name, value)]
    threads, listen = str(peer.threads), str(port)
    if peer.name == "transformers-server":
        script = str(PEERS / "transformers_server.py")
        return [peer.program, script, peer.model, peer.dtype, threads, listen]
    if peer.name == "llama.cpp":
        fixed = ["-t", threads, "-tb", threads, "-cb", "--no-kv-unified"]
        return [peer.program, "-m", peer.model, *fixed, *flags, "--port", listen]
    modules = {"vllm": "vllm.entrypoints.openai.api_server", "paged_jax": "paged_jax.serve"}
    if peer.name not in modules:
        raise OptionError(f"{peer.name} has no server: measure it offline")
    common = ["--model", peer.model] if peer.model else []
    module = ["-m", modules[peer.name], *common, "--dtype", peer.dtype, "--port", listen]
    return [peer.program, *module, *flags]


def open_peer(peer: Peer) -> RunnerBackend | ServerBackend:
    """Start a peer the way it is measured offline."""
    if peer.name in ("llama.cpp", "transformers-server"):
        return ServerBackend(peer)
    return RunnerBackend(peer)


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def own_python() -> str:
    """Return this program's interpreter."""
    return sys.executable


def _flag(name: str, value: str) -> list[str]:
    dashes = "-" if len(name) <= 2 else "--"
    flag = dashes + name.replace("_", "-")
    return {"true": [flag], "false": ["--no-" + name.replace("_", "-")]}.get(value, [flag, value])


def _checked(request: BenchRequest, outcome: Outcome) -> Outcome:
    """Return an outcome, as a failed one if it has another length than asked for."""
    if outcome.error is not None or outcome.output_len == request.max_tokens:
        return outcome
    reason = f"{outcome.output_len} tokens came instead of {request.max_tokens}"
    return Outcome(outcome.prompt_len, 0, outcome.start_s, (), reason)
