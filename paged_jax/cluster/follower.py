"""A follower's side: loads its part of the model, then calls what rank 0 calls."""

import logging
import queue
import socket
import threading
import time
from typing import Any

import jax

from paged_jax.cluster import handshake
from paged_jax.cluster.failure import Failure
from paged_jax.cluster.leader import HELLO_S, JOIN_S, PULSE_S, SILENCE_S
from paged_jax.cluster.listening import address_of
from paged_jax.cluster.plans import END, HEADER, MAGIC, PULSE, BadMessage, Plans, read_header
from paged_jax.compiled.programs import Drawn, ProgramKey, Programs
from paged_jax.compiled.step import BackboneOutput
from paged_jax.config import EngineConfig
from paged_jax.device.kv_pool import init_pool
from paged_jax.engine.preparation import Parts, prepare
from paged_jax.engine.resolved import with_blocks
from paged_jax.engine_args import EngineArgs
from paged_jax.models.params import ModelParams

logger = logging.getLogger("paged_jax")

AHEAD = 4  # calls that may be unfinished before the next is begun


def follow(args: EngineArgs) -> int:
    """Be a follower until rank 0 ends; return the exit code. A failure ends the process."""
    parts = prepare(args)
    connection, num_blocks = join(args, parts)
    follower = Follower(with_blocks(parts.config, num_blocks), parts.params, connection)
    follower.run()
    return 0


def join(args: EngineArgs, parts: Parts) -> tuple[socket.socket, int]:
    """Connect to rank 0; return the connection and the number of blocks.

    Raises:
        OSError: it is not there, or refuses this rank; says why.
    """
    secret, where = handshake.read_secret(args), "{} port {}".format(*address_of(args))
    digests = handshake.digests_of(parts.config, parts.params)
    hello = handshake.Hello(args.node_rank, parts.ledger.num_blocks, digests)
    connection = _connect(address_of(args))
    connection.settimeout(JOIN_S)
    try:
        num_blocks, index = handshake.introduce(connection, secret, hello)
    except (EOFError, handshake.Stranger) as error:
        raise OSError(
            f"rank 0 at {where} refuses rank {args.node_rank} ({error}): is "
            f"{handshake.SECRET_VARIABLE} the same on both?"
        ) from error
    if index:
        raise OSError(
            f"rank {args.node_rank} runs {handshake.DIFFERENCES[index]} than rank 0: start every "
            "rank with the same command"
        )
    return connection, num_blocks


def _connect(address: tuple[str, int]) -> socket.socket:
    """Connect as soon as rank 0 listens."""
    deadline = time.monotonic() + JOIN_S
    while True:
        try:
            connection = socket.create_connection(address, HELLO_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        except OSError as error:
            if time.monotonic() > deadline:
                raise OSError(f"rank 0 cannot be reached at {address}: {error}") from error
            time.sleep(0.2)


class Follower:
    """The state of a rank that does as it is told."""

    def __init__(self, config: EngineConfig, params: ModelParams, connection: socket.socket):
        self._failure = Failure(grace_s=0.0)
        self._connection, self._params = connection, params
        self._calls: queue.Queue[tuple[ProgramKey, Any, int] | None] = queue.Queue()
        self._outputs: queue.Queue[tuple[Any, int]] = queue.Queue(AHEAD)
        self._done = 0
        self._programs = Programs(config)
        self._pool = init_pool(config.model, config.cache, self._programs.mesh)
        self._programs.warm_up(params, self._pool)
        self._plans = Plans(self._programs)
        self._drawn: Drawn = self._programs.nothing_drawn()
        self._hidden: BackboneOutput | None = None

    def run(self) -> None:
        """Follow until rank 0 ends."""
        self._connection.settimeout(SILENCE_S)
        for run in (self._listen, self._finish, self._pulse):
            threading.Thread(target=run, name="cluster", daemon=True).start()
        logger.info("Following rank 0")
        while (call := self._calls.get()) is not None:
            key, arrays, number = call
            try:
                self._outputs.put((self._call(key, arrays), number))
            except Exception as error:
                self._report_step(error)
        self._failure.settle()

    def _call(self, key: ProgramKey, arrays: Any) -> Any:
        """Call a program as `Engine` does; return what tells that it is finished."""
        programs, name = self._programs, key[0]
        if name == "copy":
            self._pool = programs.copy(self._pool, *arrays)
            return ()  # the pool is donated to what comes next
        if name == "score":
            return programs.score(self._params, *arrays)
        if name == "backbone":
            (batch,) = arrays
            hidden, pool = programs.run_backbone(self._params, self._pool, batch, self._drawn)
            self._hidden, self._pool = hidden, pool
            return hidden
        assert self._hidden is not None, "drawn before anything was computed"
        (rows,) = arrays
        out, self._drawn = programs.run_draw(self._params, self._hidden, rows)
        return out

    def _listen(self) -> None:
        """Queue what rank 0 sends."""
        try:
            while True:
                header = handshake.read_exactly(self._connection, HEADER.size)
                kind, number, length = read_header(header)
                self._plans.check_length(kind, length)
                payload = handshake.read_exactly(self._connection, length)
                if kind == END:
                    self._failure.settle()
                    self._calls.put(None)
                    return
                if kind != PULSE:
                    self._calls.put((*self._plans.unpack(kind, payload), number))
        except TimeoutError:
            self._failure.report(
                f"rank 0 has been silent for {SILENCE_S:g} s: it is stuck or cut off"
            )
        except (OSError, EOFError, BadMessage) as error:
            self._failure.report(f"rank 0 is lost: {error}")

    def _finish(self) -> None:
        """Wait for each call's outputs, in order."""
        while True:
            outputs, number = self._outputs.get()
            try:
                jax.block_until_ready(outputs)
            except Exception as error:
                self._report_step(error)
            self._done = number

    def _report_step(self, error: Exception) -> None:
        self._failure.report_step(f"a step failed on this rank: {type(error).__name__}: {error}")

    def _pulse(self) -> None:
        """Tell rank 0 that this rank lives, and how far it is."""
        try:
            while True:
                self._connection.sendall(HEADER.pack(MAGIC, PULSE, self._done, 0))
                time.sleep(PULSE_S)
        except OSError as error:
            self._failure.report(f"rank 0 is lost: {error}")
