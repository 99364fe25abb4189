"""How the ranks find that they belong together, before any plan is sent.

Both sides prove by HMAC-SHA256 over fresh nonces that they know the same secret, and a follower
sends digests of what must be equal on all ranks. All messages are of fixed size.
"""

import hashlib
import hmac
import os
import secrets
import socket
import struct
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from paged_jax.config import EngineConfig, OptionError
from paged_jax.engine_args import EngineArgs

SECRET_VARIABLE = "PAGED_JAX_CLUSTER_SECRET"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
GREETING = b"paged_jax ranks 1"
NONCE, MAC, DIGEST = 32, 32, 32
HELLO = struct.Struct(f"!{len(GREETING)}sIQ{3 * DIGEST}s{NONCE}s")  # rank, blocks, digests, nonce
ANSWER = struct.Struct("!QI")  # blocks agreed, index of what differs (0: nothing)
DIFFERENCES = ("", "another version of jax", "another model", "other options")


class Stranger(ValueError):
    """Whoever connected is no rank of this engine."""


@dataclass(frozen=True)
class Hello:
    """What a follower says of itself."""

    rank: int
    num_blocks: int
    digests: bytes


def read_secret(args: EngineArgs) -> bytes:
    """Return the secret the ranks share, from the environment.

    Raises:
        OptionError: there is none, and others can reach the address.
    """
    secret = os.environ.get(SECRET_VARIABLE, "")
    if not secret and args.master_addr not in LOOPBACK:
        raise OptionError(
            f"--master-addr {args.master_addr} can be reached by others: set {SECRET_VARIABLE} to "
            "the same long random text on every host"
        )
    return secret.encode()


def digests_of(config: EngineConfig, params: Any) -> bytes:
    """Return digests of jax's version, of the model, and of all else but the number of blocks.

    Of the weights those count that every host has whole, as the norms: they tell models apart,
    except such as were trained to differ in matrices alone.
    """
    cache = replace(config.cache, num_blocks=2)
    rest = replace(config, cache=cache, model_name="", record=None)
    parts = (jax.__version__.encode(), _model_bytes(config, params), repr(rest).encode())
    return b"".join(hashlib.sha256(part).digest() for part in parts)


def _model_bytes(config: EngineConfig, params: Any) -> bytes:
    whole = [leaf for leaf in jax.tree.leaves(params) if leaf.is_fully_replicated]
    return b"".join([repr(config.model).encode(), *(np.asarray(leaf).tobytes() for leaf in whole)])


def difference(mine: bytes, theirs: bytes) -> int:
    """Return the index in DIFFERENCES of the first digest that is not equal; 0 if all are."""
    for index in range(3):
        part = slice(index * DIGEST, (index + 1) * DIGEST)
        if mine[part] != theirs[part]:
            return index + 1
    return 0


def greet(connection: socket.socket, secret: bytes) -> tuple[Hello, bytes]:
    """Let a follower prove that it knows the secret (on rank 0).

    Returns:
        what it says, and its nonce, for `answer`.
    Raises:
        Stranger: it does not, or speaks something else.
    """
    nonce = secrets.token_bytes(NONCE)
    connection.sendall(GREETING + nonce)
    hello = read_exactly(connection, HELLO.size)
    mac = read_exactly(connection, MAC)
    greeting, rank, num_blocks, digests, theirs = HELLO.unpack(hello)
    if greeting != GREETING or not hmac.compare_digest(mac, _mac(secret, b"to 0", nonce, hello)):
        raise Stranger("it does not know the secret")
    return Hello(rank, num_blocks, digests), theirs


def answer(connection: socket.socket, secret: bytes, nonce: bytes, body: bytes) -> None:
    """Send the agreed number of blocks and what differs, with rank 0's own proof."""
    connection.sendall(body + _mac(secret, b"from 0", nonce, body))


def introduce(connection: socket.socket, secret: bytes, hello: Hello) -> tuple[int, int]:
    """Prove to rank 0 that this rank belongs to it (on a follower).

    Returns:
        the agreed number of blocks, and the index in DIFFERENCES.
    Raises:
        Stranger: the other side is not rank 0, or refuses the secret.
    """
    greeting = read_exactly(connection, len(GREETING))
    if greeting != GREETING:
        raise Stranger("it speaks something else")
    nonce, mine = read_exactly(connection, NONCE), secrets.token_bytes(NONCE)
    body = HELLO.pack(GREETING, hello.rank, hello.num_blocks, hello.digests, mine)
    connection.sendall(body + _mac(secret, b"to 0", nonce, body))
    reply, mac = read_exactly(connection, ANSWER.size), read_exactly(connection, MAC)
    if not hmac.compare_digest(mac, _mac(secret, b"from 0", mine, reply)):
        raise Stranger("it does not know the secret")
    return ANSWER.unpack(reply)


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """Return `count` bytes.

    Raises:
        EOFError: the other side has closed the connection.
        OSError: also after the socket's timeout.
    """
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), 1 << 20))
        if not piece:
            raise EOFError("the connection was closed")
        data += piece
    return bytes(data)


def _mac(secret: bytes, *parts: bytes) -> bytes:
    return hmac.new(secret, b"".join(parts), hashlib.sha256).digest()
