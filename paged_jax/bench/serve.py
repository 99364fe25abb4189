"""`bench serve`: load on a running OpenAI-compatible server, and what its users would see."""

import argparse
import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from paged_jax.bench.client import Ask, Endpoint, HttpError, fetch
from paged_jax.bench.datasets import (
    BenchRequest,
    Codec,
    add_dataset_flags,
    read_dataset,
)
from paged_jax.bench.load import Pace, send_all
from paged_jax.bench.metrics import METRICS, Figures, Outcome, read_goodput, summarise
from paged_jax.bench.report import exit_if_failed
from paged_jax.bench.scrape import watched
from paged_jax.bench.serve_report import save, serving_text
from paged_jax.config import OptionError

PATHS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}
SAMPLING = ("temperature", "top_p", "top_k", "min_p")
SAMPLING += ("frequency_penalty", "presence_penalty", "repetition_penalty")


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = _parser().parse_args(arguments)
    goodput = read_goodput(options.goodput)
    url = options.base_url or f"http://{options.host}:{options.port}"
    endpoint = Endpoint.of(url, _headers(options.header or ()))
    encoder = _tokenizer(options.tokenizer)
    requests = read_dataset(options, encoder)
    try:
        model = options.model or asyncio.run(_first_model(endpoint))
    except (OSError, EOFError, ValueError, HttpError) as error:
        raise OptionError(f"no server answers at {url}: {error}") from error
    questions = make_questions(requests, options, model=model, encoder=encoder)
    outcomes, duration_s, extra = asyncio.run(_load(endpoint, questions, options))
    percentiles = _percentiles(options.metric_percentiles)
    figures = summarise(outcomes, duration_s, percentiles=percentiles, goodput=goodput) | extra
    print(serving_text(figures, options, percentiles))
    if options.save_result:
        save(options, {"model_id": model, **figures}, outcomes)
    exit_if_failed(outcomes)


async def _load(
    endpoint: Endpoint, questions: Sequence[Ask], options: argparse.Namespace
) -> tuple[list[Outcome], float, Figures]:
    pace = Pace(options.request_rate, options.burstiness, options.max_concurrency, options.seed)
    if options.num_warmups:
        warm = [questions[index % len(questions)] for index in range(options.num_warmups)]
        await send_all(endpoint, warm, Pace(max_concurrency=options.max_concurrency))
    (outcomes, duration_s), figures = await watched(endpoint, send_all(endpoint, questions, pace))
    return outcomes, duration_s, figures


def make_questions(
    requests: Sequence[BenchRequest],
    options: argparse.Namespace,
    *,
    model: str,
    encoder: Codec | None = None,
) -> list[Ask]:
    """Return the bodies to post: prompts as token ids, or as text where they are chat messages.

    Raises:
        OptionError: chat needs a tokenizer.
    """
    is_chat = options.backend == "openai-chat"
    if is_chat and encoder is None:
        raise OptionError("--backend openai-chat needs --tokenizer to turn token ids into text")
    common = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    given = {name: getattr(options, name) for name in SAMPLING}
    common |= {name: value for name, value in given.items() if value is not None}
    if options.ignore_eos:
        common["ignore_eos"] = True
    common |= options.extra_body or {}
    questions = []
    for request in requests:
        prompt: dict[str, object] = {"prompt": list(request.prompt)}
        if is_chat and encoder is not None:
            prompt = {"messages": [{"role": "user", "content": encoder.decode(request.prompt)}]}
        body = {**prompt, "max_tokens": request.max_tokens, **common}
        path = options.endpoint or PATHS[options.backend]
        questions.append(Ask(path, body, len(request.prompt)))
    return questions


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.bench serve", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--backend", choices=PATHS, default="openai", help="kind of endpoint (openai)")
    add("--base-url", metavar="URL", help="instead of --host and --port")
    add("--host", default="127.0.0.1", help="(default: %(default)s)")
    add("--port", type=int, default=8000, help="(default: %(default)s)")
    add("--endpoint", metavar="PATH", help="instead of the backend's usual one")
    add("--model", help="the served name (default: the first of /v1/models)")
    add("--tokenizer", metavar="MODEL", help="folder, .gguf or id; for files and for chat")
    add("--header", action="append", metavar="NAME=VALUE", help="may be repeated")
    add("--seed", type=int, default=0, help="of the requests and arrivals (0)")
    _add_load_flags(parser)
    add_dataset_flags(parser)
    _add_result_flags(parser)
    return parser


def _add_load_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("load").add_argument
    add("--request-rate", type=float, default=float("inf"), help="requests/s (inf: all at once)")
    add("--burstiness", type=float, default=1.0, help="1 is Poisson, less is burstier")
    add("--max-concurrency", type=int, help="requests under way at once (default: no limit)")
    add("--num-warmups", type=int, default=0, help="requests before it counts (0)")
    add("--ignore-eos", action="store_true", help="outputs of exact lengths")
    for name in SAMPLING:
        kind = int if name == "top_k" else float
        add("--" + name.replace("_", "-"), type=kind, help="(default: the server's)")
    add("--extra-body", type=json.loads, metavar="JSON", help="added to every body")


def _add_result_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("results").add_argument
    add("--percentile-metrics", type=_metrics, default=("ttft", "tpot", "itl"), metavar="LIST",
        help="of ttft,tpot,itl,e2el (ttft,tpot,itl)")  # fmt: skip
    add("--metric-percentiles", default="50,90,99", metavar="LIST", help="(%(default)s)")
    add("--goodput", nargs="+", metavar="METRIC:MS", help="ttft:500 tpot:50 e2el:3000")
    add("--save-result", action="store_true", help="write the figures as JSON")
    add("--save-detailed", action="store_true", help="with lists of every request")
    add("--append-result", action="store_true", help="append to the file instead")
    add("--result-dir", type=Path, default=Path(), metavar="DIR", help="(default: here)")
    add("--result-filename", metavar="NAME", help="(default: made of backend, rate and date)")
    add("--label", help="goes into the file")
    add("--metadata", nargs="+", metavar="KEY=VALUE", help="goes into the file")


def _metrics(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - set(METRICS):
        raise argparse.ArgumentTypeError(f"must be of {', '.join(METRICS)}, not {min(unknown)!r}")
    return names


def _percentiles(text: str) -> list[float]:
    try:
        values = [float(word) for word in text.split(",")]
    except ValueError:
        values = [-1.0]
    if not all(0 <= value <= 100 for value in values):
        raise OptionError(f"--metric-percentiles must be numbers from 0 to 100, not {text!r}")
    return values


def _headers(words: Sequence[str]) -> Mapping[str, str]:
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise OptionError(f"--header must be NAME=VALUE, not {word!r}")
        headers[name] = value
    return headers


async def _first_model(endpoint: Endpoint) -> str:
    return json.loads(await fetch(endpoint, "/v1/models"))["data"][0]["id"]


def _tokenizer(model: str | None) -> Codec | None:
    if model is None:
        return None
    # Here, as it loads jax, which few runs need.
    from paged_jax.engine.preparation import load_tokenizer
    from paged_jax.weights.source import resolve_model

    return load_tokenizer(resolve_model(model, with_weights=False), may_lack=False)
