"""HTTP over two replicas: the answers of one engine, the blocks and figures of both."""

import asyncio

import httpx
import pytest

from paged_jax import AsyncEngine, SamplingParams
from server import ServerSettings, create_app

PROMPTS = [[3 + (7 * i + j) % 250 for j in range(5 + 9 * i)] for i in range(6)]


@pytest.fixture
def client(engine_on):
    engine = AsyncEngine(engine_on("llama", (2, 1, 1)).engine)
    engine.start()
    app = create_app(engine, ServerSettings(served_names=("tiny",)))
    yield httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
    engine.stop()


async def ask(client: httpx.AsyncClient) -> tuple[list[str], dict, str]:
    """Return the texts, the block map and the metrics."""
    bodies = [{"prompt": ids, "max_tokens": 8, "temperature": 0} for ids in PROMPTS]
    answers = await asyncio.gather(*(client.post("/v1/completions", json=b) for b in bodies))
    texts = [answer.json()["choices"][0]["text"] for answer in answers]
    blocks = await client.get("/v1/engine/blocks")
    return texts, blocks.json(), (await client.get("/metrics")).text


def test_answers_over_http_are_those_of_one_engine(engine_on, client) -> None:
    engines = engine_on("llama", (2, 1, 1)).engine.engines
    before = [each.stats().generation_tokens for each in engines]

    texts, blocks, metrics = asyncio.run(ask(client))

    params = SamplingParams(temperature=0.0, max_tokens=8)
    expected = engine_on("llama").generate(PROMPTS, params, use_tqdm=False)
    assert texts == [output.outputs[0].text for output in expected]
    after = [each.stats().generation_tokens for each in engines]
    assert all(one > other for one, other in zip(after, before, strict=True))
    assert blocks["num_blocks"] == len(blocks["refs"]) == 2 * 9
    assert blocks["counts"]["generated_tokens"] == sum(after)
    (dead,) = [line for line in metrics.splitlines() if line.startswith("paged_jax:dead_replicas")]
    assert dead.endswith(" 0.0")
