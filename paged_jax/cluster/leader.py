"""Rank 0's side: lets the followers in, sends them plans, and watches that they keep up."""

import logging
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paged_jax.cluster import handshake
from paged_jax.cluster.failure import Failure
from paged_jax.cluster.plans import END, HEADER, MAGIC, PULSE, BadMessage, Plans, read_header
from paged_jax.compiled.programs import ProgramKey, Programs

logger = logging.getLogger("paged_jax")

PULSE_S, SILENCE_S, STEP_S = 0.5, 15.0, 25.0
JOIN_S, START_S = 600.0, 1800.0  # until all are there, until all have compiled
HELLO_S = 10.0  # for one handshake


@dataclass
class Link:
    """The connection to one follower.

    Attributes:
        done: number of the last call it has finished; None before it is ready.
    """

    rank: int
    connection: socket.socket
    done: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, message: bytes) -> None:
        """Send a whole message; raises OSError."""
        with self.lock:
            self.connection.sendall(message)


class Leader:
    """The followers of rank 0.

    Attributes:
        failure: where the loss of a rank is told.
    """

    def __init__(self, links: list[Link]):
        self.failure = Failure()
        self._links = links
        self._plans: Plans | None = None
        self._sent: deque[tuple[int, float]] = deque()  # calls not finished everywhere
        self._number = 0
        self._is_closed = threading.Event()
        for link in links:
            _start(self._listen, link)
        _start(self._watch)

    def lead(self, programs: Programs) -> None:
        """Wait until every follower is ready; from then on it calls what rank 0 calls.

        Raises:
            TimeoutError: one is not ready in time.
        """
        deadline = time.monotonic() + START_S
        while waiting := [link.rank for link in self._links if link.done is None]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {waiting[0]} was not ready within {START_S:g} s")
            time.sleep(0.02)
        self._plans = Plans(programs)
        programs.announce = self.announce

    def announce(self, key: ProgramKey, arguments: tuple[Any, ...]) -> None:
        """Tell every follower of a call that rank 0 is about to make, given all its arguments."""
        assert self._plans is not None, "not leading yet"
        self._number += 1
        message = self._plans.pack(key, arguments, self._number)
        self._sent.append((self._number, time.monotonic()))
        for link in self._links:
            self._send(link, message)

    def note_failed_step(self, cause: str) -> None:
        """Report a step that failed here, unless a rank was lost."""
        self.failure.report_step(f"a step failed on rank 0: {cause}")

    def close(self) -> bool:
        """Let the followers end, if all is well; if not, they see that this process is gone.

        Returns whether it was.
        """
        is_orderly = self.failure.settle() and self._plans is not None
        self._is_closed.set()
        for link in self._links if is_orderly else ():
            self._send(link, HEADER.pack(MAGIC, END, 0, 0))
        return is_orderly

    def _send(self, link: Link, message: bytes) -> None:
        try:
            link.send(message)
        except OSError as error:
            self.failure.report(f"rank {link.rank} is lost: {error}")

    def _listen(self, link: Link) -> None:
        """Take in a follower's pulses; their absence is a failure."""
        try:
            while True:
                data = handshake.read_exactly(link.connection, HEADER.size)
                kind, number, length = read_header(data)
                if kind != PULSE or length:
                    raise BadMessage("a follower sends nothing but pulses")
                link.connection.settimeout(SILENCE_S)
                link.done = number
        except TimeoutError:
            self.failure.report(
                f"rank {link.rank} has been silent for {SILENCE_S:g} s: it is stuck or cut off"
            )
        except (OSError, EOFError, BadMessage) as error:
            self.failure.report(f"rank {link.rank} is lost: {error}")
        finally:
            link.connection.close()

    def _watch(self) -> None:
        """Send pulses, and see that calls are finished."""
        while not self._is_closed.wait(PULSE_S):
            for link in self._links:
                if link.lock.acquire(blocking=False):  # else something is being sent anyway
                    link.lock.release()
                    self._send(link, HEADER.pack(MAGIC, PULSE, 0, 0))
            done = {link.rank: link.done or 0 for link in self._links}
            while self._sent and self._sent[0][0] <= min(done.values()):
                self._sent.popleft()
            if self._sent and time.monotonic() - self._sent[0][1] > STEP_S:
                slowest = min(done, key=lambda rank: done[rank])
                self.failure.report(f"rank {slowest} has not finished a step within {STEP_S:g} s")


def gather(
    listener: socket.socket, secret: bytes, hello: handshake.Hello, *, num_ranks: int
) -> tuple[Leader, int]:
    """Let all followers in.

    Args:
        hello: of rank 0 itself.

    Returns:
        their leader, and the number of blocks that all can hold.

    Raises:
        TimeoutError: some are not there in time; names them.
        ValueError: one runs something else; says which and what.
    """
    found = _wait_for_all(listener, secret, num_ranks)
    num_blocks = min(hello.num_blocks, *(arrival.hello.num_blocks for arrival in found))
    wrong = []
    for link, theirs, nonce in found:
        index = handshake.difference(hello.digests, theirs.digests)
        handshake.answer(link.connection, secret, nonce, handshake.ANSWER.pack(num_blocks, index))
        if index:
            wrong.append(f"rank {link.rank} runs {handshake.DIFFERENCES[index]}")
    if wrong:
        for link, _, _ in found:
            link.connection.close()
        raise ValueError(f"{'; '.join(wrong)}: start every rank with the same command")
    return Leader([arrival.link for arrival in found]), num_blocks


class Arrival(NamedTuple):
    """A follower that knows the secret, what it says of itself, and its nonce."""

    link: Link
    hello: handshake.Hello
    nonce: bytes


def _wait_for_all(listener: socket.socket, secret: bytes, num_ranks: int) -> list[Arrival]:
    """Return the followers by rank; raises TimeoutError."""
    found: dict[int, Arrival] = {}
    deadline = time.monotonic() + JOIN_S
    while missing := [rank for rank in range(1, num_ranks) if rank not in found]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {missing[0]} did not connect within {JOIN_S:g} s")
        arrival = _let_in(listener, secret, missing)
        if arrival is not None:
            found[arrival.link.rank] = arrival
    return [found[rank] for rank in sorted(found)]


def _let_in(listener: socket.socket, secret: bytes, missing: list[int]) -> Arrival | None:
    """Take one connection; None if nobody comes for a while, or a stranger does."""
    listener.settimeout(1.0)
    try:
        connection, address = listener.accept()
    except TimeoutError:
        return None
    connection.settimeout(HELLO_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        hello, nonce = handshake.greet(connection, secret)
        if hello.rank not in missing:
            raise handshake.Stranger(f"rank {hello.rank} is none that is waited for")
    except (OSError, EOFError, handshake.Stranger) as error:
        logger.warning("Refused a connection of %s: %s", address[0], error)
        connection.close()
        return None
    connection.settimeout(START_S)
    return Arrival(Link(hello.rank, connection), hello, nonce)


def _start(run: Any, *arguments: Any) -> None:
    threading.Thread(target=run, args=arguments, name="cluster", daemon=True).start()
