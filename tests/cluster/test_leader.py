"""Rank 0 lets its followers in, and notices when one is lost, silent, or behind."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import jax.numpy as jnp
import pytest
from tiny import tiny_model_config

from paged_jax.cluster import failure, handshake, leader
from paged_jax.cluster.failure import Failure
from paged_jax.cluster.plans import END, HEADER, MAGIC, PULSE
from paged_jax.compiled.programs import Programs
from paged_jax.config import CacheConfig, EngineConfig, SchedulerConfig

CONFIG = EngineConfig(tiny_model_config(), CacheConfig(9), SchedulerConfig(4, 8, 64))
HELLO = handshake.Hello(0, 9, handshake.digests_of(CONFIG, [jnp.ones(3)]))
SECRET = b"s"


@pytest.fixture
def quick(monkeypatch) -> list[str]:
    """Deadlines of tenths of a second, and no end of the process; returns what is reported."""
    told: list[str] = []
    for name, value in {"PULSE_S": 0.02, "SILENCE_S": 0.4, "STEP_S": 0.4}.items():
        monkeypatch.setattr(leader, name, value)
    monkeypatch.setattr(failure, "LOSS_S", 0.2)

    def report(self: Failure, sentence: str) -> None:
        told.append(sentence)
        self._is_told.set()

    monkeypatch.setattr(Failure, "report", report)
    return told


class Pair:
    """A leader and the other end of its connection to rank 1, which is ready."""

    def __init__(self) -> None:
        self.mine, self.theirs = socket.socketpair()
        self.leader = leader.Leader([leader.Link(1, self.mine)])
        self.pulse(0)
        programs = Programs(CONFIG)
        programs.compile_seconds = {("draw", 4): 0.0}
        self.leader.lead(programs)
        self.rows = programs.neutral_rows(4, is_plain=False)

    def pulse(self, number: int) -> None:
        self.theirs.sendall(HEADER.pack(MAGIC, PULSE, number, 0))


@pytest.fixture
def pair(quick) -> Iterator[Pair]:
    made = Pair()
    yield made
    made.leader.close()
    made.theirs.close()
    while made.mine.fileno() != -1:  # until its thread has ended
        time.sleep(0.01)


def test_a_closed_connection_is_a_lost_rank(pair, quick) -> None:
    pair.theirs.close()
    assert pair.leader.failure.wait(5) and quick[0].startswith("rank 1 is lost")


def test_a_connection_that_takes_nothing_is_a_lost_rank(pair, quick) -> None:
    pair.mine.shutdown(socket.SHUT_WR)
    assert pair.leader.failure.wait(5) and quick[0] == "rank 1 is lost: [Errno 32] Broken pipe"


def test_a_rank_without_a_pulse_is_stuck(pair, quick) -> None:
    assert pair.leader.failure.wait(5)
    assert quick[0] == "rank 1 has been silent for 0.4 s: it is stuck or cut off"


def test_a_rank_that_finishes_no_step_is_behind(pair, quick) -> None:
    pair.leader.announce(("draw", 4), (None, None, pair.rows))
    while not pair.leader.failure.wait(0.05):
        pair.pulse(0)
    assert quick[0] == "rank 1 has not finished a step within 0.4 s"


def test_a_failed_step_is_told_unless_a_rank_was_lost(pair, quick) -> None:
    pair.pulse(0)
    pair.leader.note_failed_step("Boom")
    assert quick == ["a step failed on rank 0: Boom"]
    pair.leader.note_failed_step("Boom, as rank 1 has gone")
    assert len(quick) == 1


def test_an_orderly_end_is_told_to_the_followers(pair) -> None:
    assert pair.leader.close() and not pair.leader.close()
    pair.mine.shutdown(socket.SHUT_WR)
    with pair.theirs.makefile("rb") as sent:
        assert sent.read().endswith(HEADER.pack(MAGIC, END, 0, 0))


def join(address: tuple[str, int], hello: handshake.Hello, secret: bytes = SECRET) -> None:
    with socket.create_connection(address, 5) as connection:
        connection.settimeout(5)
        try:
            handshake.introduce(connection, secret, hello)
        except (EOFError, OSError):
            return


@contextmanager
def joining(hello: handshake.Hello) -> Iterator[socket.socket]:
    """A listener that a stranger and then rank 1 connect to."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as callers:
        address = listener.getsockname()
        callers.submit(join, address, HELLO)
        callers.submit(join, address, hello, b"wrong")
        callers.submit(join, address, hello)
        yield listener


def test_ranks_are_let_in_past_strangers(quick) -> None:
    with joining(handshake.Hello(1, 7, HELLO.digests)) as listener:
        made, num_blocks = leader.gather(listener, SECRET, HELLO, num_ranks=2)
    made.close()
    assert num_blocks == 7


def test_a_rank_that_runs_something_else_is_refused(quick) -> None:
    with (
        joining(handshake.Hello(1, 7, bytes(96))) as listener,
        pytest.raises(ValueError, match="rank 1 runs another version of jax"),
    ):
        leader.gather(listener, SECRET, HELLO, num_ranks=2)


def test_a_rank_that_never_comes_is_named(monkeypatch) -> None:
    monkeypatch.setattr(leader, "JOIN_S", 0.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(TimeoutError, match="rank 1 did not connect"),
    ):
        leader.gather(listener, SECRET, HELLO, num_ranks=2)
