"""Ten minutes of too much: a live server under several times what it can take, with clients that
leave in the middle and requests that are wrong.

python tests/soak.py --base-url http://127.0.0.1:8000 --clients 48 --minutes 10

Prints one line of JSON and ends with 1 unless afterwards no block is held, memory has not grown,
every wrong request got a 4xx with a reason, and every proper one an answer or a 429.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

WORDS = "the a of water house light seven runs over blue and then because never small tree".split()
CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
WRONG: tuple[tuple[str, dict], ...] = (
    (TEXT, {"prompt": ""}),
    (TEXT, {"prompt": [-1]}),
    (TEXT, {"prompt": "a", "n": 10**9}),
    (TEXT, {"prompt": "a", "temperature": -1}),
    (TEXT, {"prompt": "a", "logprobs": 10**6}),
    (TEXT, {"prompt": "a", "max_tokens": 10**12}),
    (TEXT, {"prompt": "word " * 20_000}),
    (TEXT, {"prompt": "a", "structured_outputs": {"regex": "("}}),
    (TEXT, {"prompt": "a", "model": "nobody"}),
    (CHAT, {"messages": []}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"}),
    (
        CHAT,
        {
            "messages": [{"role": "user", "content": "a"}],
            "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}},
        },
    ),
    (EMBED, {"input": []}),
)


@dataclass
class Tally:
    """What has happened.

    Attributes:
        first_s, whole_s: of proper requests that were answered, from sending.
        faults: what should not have been, in words.
        memory: the server's resident bytes over time.
    """

    counts: Counter[str] = field(default_factory=Counter)
    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


def proper_request(rng: random.Random) -> tuple[str, dict]:
    """A request of any of the usual kinds; some share a prefix."""
    text = " ".join(rng.choices(WORDS, k=rng.choice((4, 20, 120))))
    if rng.random() < 0.3:
        text = " ".join(WORDS * 4) + text
    body: dict = {"max_tokens": rng.choice((4, 16, 48)), "temperature": rng.choice((0, 0.8))}
    body |= rng.choice(
        ({}, {"n": 2}, {"logprobs": 2}, {"stop": ["e"]}, {"frequency_penalty": 0.5},
         {"structured_outputs": {"regex": "[a-z ]{5,20}"}})
    )  # fmt: skip
    if rng.random() < 0.3 and "logprobs" not in body:
        return CHAT, body | {"messages": [{"role": "user", "content": text}]}
    return TEXT, body | {"prompt": text}


async def behave(http: httpx.AsyncClient, rng: random.Random, tally: Tally) -> None:
    """Send a proper request and read its stream to the end."""
    path, body = proper_request(rng)
    start, pieces = time.monotonic(), list[str]()
    async with http.stream("POST", path, json=body | {"stream": True}) as answer:
        if answer.status_code == 429:
            tally.counts["proper, 429"] += 1
            await asyncio.sleep(rng.uniform(0, int(answer.headers["retry-after"])))
            return
        if answer.status_code != 200:
            await answer.aread()
            tally.faults.append(f"{answer.status_code} for {body}: {answer.text[:200]}")
            return
        async for line in answer.aiter_lines():
            if line and not pieces:
                tally.first_s.append(time.monotonic() - start)
            pieces += [line] if line else []
    if pieces[-1:] != ["data: [DONE]"] or any('"error"' in piece for piece in pieces[-2:]):
        tally.faults.append(f"a stream ended with {pieces[-2:]}")
    tally.whole_s.append(time.monotonic() - start)
    tally.counts["proper, answered"] += 1


async def leave(http: httpx.AsyncClient, rng: random.Random, tally: Tally) -> None:
    """Send a proper request, streamed or not, and hang up after a random time."""
    path, body = proper_request(rng)
    try:
        async with asyncio.timeout(rng.choice((0.02, 0.3, 2.0))):
            await http.post(path, json=body | {"stream": rng.random() < 0.5, "max_tokens": 400})
            tally.counts["leaver, answered in time"] += 1
    except TimeoutError:
        tally.counts["leaver, left"] += 1


async def err(http: httpx.AsyncClient, rng: random.Random, tally: Tally) -> None:
    """Send a wrong request; it must be refused with a reason."""
    path, body = rng.choice(WRONG)
    answer = await http.post(path, json=body)
    tally.counts[f"wrong, {answer.status_code}"] += 1
    reason = answer.json().get("error", {}).get("message") if answer.content else None
    if not 400 <= answer.status_code < 500 or not reason:
        tally.faults.append(f"{answer.status_code} for {str(body)[:80]}: {answer.text[:200]}")
    await asyncio.sleep(0.2)


async def client(http: httpx.AsyncClient, number: int, until: float, tally: Tally) -> None:
    """One client after the other does one thing after the other."""
    rng = random.Random(number)
    while time.monotonic() < until:
        act = rng.choices((behave, leave, err), (6, 2, 2))[0]
        try:
            await act(http, rng, tally)
        except httpx.HTTPError as error:
            tally.faults.append(f"{act.__name__}: {error!r}")
            await asyncio.sleep(1)


async def gauges(http: httpx.AsyncClient) -> dict[str, float]:
    """The server's metrics that have one value."""
    lines = (await http.get("/metrics")).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.split("{")[0]: float(value) for name, value in pairs}


async def watch(http: httpx.AsyncClient, until: float, tally: Tally) -> None:
    """Look at the server's memory while it works; it must say that it is well."""
    while time.monotonic() < until:
        tally.memory.append((await gauges(http))["process_resident_memory_bytes"])
        health = await http.get("/health")
        if health.status_code != 200:
            tally.faults.append(f"/health is {health.status_code}")
        await asyncio.sleep(5)


HELD = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


async def rest(http: httpx.AsyncClient, tally: Tally) -> None:
    """Wait until nothing runs; then no block may be held."""
    for _ in range(120):
        now = await gauges(http)
        held = {name: now[f"paged_jax:{name}"] for name in HELD}
        if not any(held.values()):
            return
        await asyncio.sleep(0.5)
    tally.faults.append(f"a minute after the last client: {held}")


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2) if ordered else 0.0


def report(tally: Tally, growth: float) -> dict[str, object]:
    """What is printed; memory may be `growth` bytes more than after a fifth of the time."""
    settled = tally.memory[len(tally.memory) // 5 :]
    grown = settled[-1] - settled[0]
    if grown > growth:
        tally.faults.append(f"memory grew by {grown / 2**20:.1f} MiB")
    return {
        "counts": dict(sorted(tally.counts.items())),
        "first_token_s": {f"p{p}": percentile(tally.first_s, p / 100) for p in (50, 99)},
        "whole_s": {f"p{p}": percentile(tally.whole_s, p / 100) for p in (50, 99)},
        "memory_mib": [
            round(value / 2**20, 1) for value in (settled[0], max(settled), settled[-1])
        ],
        "faults": tally.faults[:20],
        "num_faults": len(tally.faults),
    }


async def soak(options: argparse.Namespace) -> dict[str, object]:
    tally, until = Tally(), time.monotonic() + 60 * options.minutes
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=options.base_url, timeout=300, limits=limits) as http:
        clients = [client(http, number, until, tally) for number in range(options.clients)]
        await asyncio.gather(watch(http, until, tally), *clients)
        await rest(http, tally)
        tally.memory.append((await gauges(http))["process_resident_memory_bytes"])
    return report(tally, options.growth_mib * 2**20)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=48, help="at once; 3 times --max-num-seqs")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--growth-mib", type=float, default=32.0, help="memory that may be added")
    result = asyncio.run(soak(parser.parse_args()))
    print(json.dumps(result, ensure_ascii=False))
    return int(bool(result["num_faults"]))


if __name__ == "__main__":
    sys.exit(main())
