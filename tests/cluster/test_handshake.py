"""Ranks let in who knows the secret and runs the same, nobody else."""

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax.numpy as jnp
import pytest
from tiny import tiny_model_config

from paged_jax.cluster import handshake
from paged_jax.config import CacheConfig, EngineConfig, OptionError, SchedulerConfig
from paged_jax.engine_args import EngineArgs

CONFIG = EngineConfig(tiny_model_config(), CacheConfig(9), SchedulerConfig(4, 8, 64))
NORMS = [jnp.ones(3)]
HELLO = handshake.Hello(1, 9, handshake.digests_of(CONFIG, NORMS))


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    for end in (one, other):
        end.settimeout(10)
    with one, other:
        yield one, other


def test_a_rank_with_the_secret_is_let_in_and_told_the_blocks(pair) -> None:
    with ThreadPoolExecutor() as threads:
        told = threads.submit(handshake.introduce, pair[1], b"s", HELLO)
        hello, nonce = handshake.greet(pair[0], b"s")
        handshake.answer(pair[0], b"s", nonce, handshake.ANSWER.pack(7, 2))
        assert hello == HELLO
        assert told.result() == (7, 2)


def test_a_rank_with_another_secret_is_a_stranger(pair) -> None:
    with ThreadPoolExecutor() as threads:
        told = threads.submit(handshake.introduce, pair[1], b"other", HELLO)
        with pytest.raises(handshake.Stranger, match="does not know the secret"):
            handshake.greet(pair[0], b"s")
        pair[0].close()
        with pytest.raises(EOFError):
            told.result()


def test_a_rank_0_without_the_secret_is_a_stranger_too(pair) -> None:
    with ThreadPoolExecutor() as threads:
        told = threads.submit(handshake.introduce, pair[1], b"s", HELLO)
        _, nonce = handshake.greet(pair[0], b"s")
        handshake.answer(pair[0], b"other", nonce, handshake.ANSWER.pack(7, 0))
        with pytest.raises(handshake.Stranger, match="does not know the secret"):
            told.result()


def test_what_speaks_something_else_is_a_stranger(pair) -> None:
    pair[1].sendall(b"GET / HTTP/1.1\r\n" * 40)
    with pytest.raises(handshake.Stranger):
        handshake.greet(pair[0], b"s")


@pytest.mark.parametrize(
    ("other", "index"),
    [
        (replace(CONFIG, cache=CacheConfig(5), model_name="x"), 0),
        (replace(CONFIG, model=tiny_model_config(rope_theta=5.0)), 2),
        (replace(CONFIG, seed=1), 3),
    ],
)
def test_what_differs_is_named_but_for_the_blocks(other, index) -> None:
    theirs = handshake.digests_of(other, NORMS)
    assert handshake.difference(HELLO.digests, theirs) == index
    assert handshake.difference(b"x" + HELLO.digests[1:], HELLO.digests) == 1


def test_other_weights_are_another_model() -> None:
    theirs = handshake.digests_of(CONFIG, [jnp.zeros(3)])
    assert handshake.DIFFERENCES[handshake.difference(HELLO.digests, theirs)] == "another model"


def test_an_address_that_others_reach_needs_a_secret(monkeypatch) -> None:
    monkeypatch.delenv(handshake.SECRET_VARIABLE, raising=False)
    assert handshake.read_secret(EngineArgs()) == b""
    with pytest.raises(OptionError, match=r"10\.0\.0\.1 can be reached by others: set PAGED_JAX"):
        handshake.read_secret(EngineArgs(master_addr="10.0.0.1"))
