"""python -m paged_jax.run_batch -i in.jsonl -o out.jsonl: a file of requests, answered offline.

The files are OpenAI's batch files. Each line is answered as the server would answer it; a line that
fails is told in its own line of the output and stops nothing. A run that was interrupted goes on
where it ended: lines whose custom_id has its answer in the output are left alone, failures of the
server's (5xx) are tried again.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from starlette.types import ASGIApp, Message

from paged_jax.config import OptionError
from paged_jax.flags import make_parser, parse
from paged_jax.log_format import configure_logging
from paged_jax.serve import leave, load, report, settings_of
from server import ServerSettings, create_app

if TYPE_CHECKING:
    from paged_jax.async_engine import AsyncEngine

logger = logging.getLogger("paged_jax")

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
MAX_LINE_BYTES = 32 << 20
UNLIMITED: "Json" = {"api_keys": (), "allowed_hosts": (), "request_timeout_s": 0.0}
Json = dict[str, Any]


class BadLine(Exception):
    """A line that is no request; `code` is the error's in the output."""

    def __init__(self, code: str, message: str, custom_id: str | None = None):
        super().__init__(message)
        self.code, self.custom_id = code, custom_id


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return 0 once every line has its line of output, whatever that says.

    1 is for a model or engine that failed, 2 for a wrong option, 130 for an interruption.
    """
    options, args = parse(sys.argv[1:] if argv is None else argv, parser=_make_parser())
    configure_logging(options.log_format, options.log_level)
    try:
        done = prepare(options.input_file, options.output_file)
        engine, options.platform = load(args)
    except Exception as error:
        return leave(report(error, with_traceback=options.log_level == "debug"), args)
    batch = Batch(engine, replace(settings_of(engine, options), **UNLIMITED), done)
    engine.start()
    try:
        asyncio.run(batch.run(options.input_file, options.output_file))
    except KeyboardInterrupt:
        return 130
    finally:
        is_failed = not engine.is_healthy
        engine.close()
        logger.info("%d lines answered, %d of them with an error", batch.num_done, batch.num_failed)
    return leave(1 if is_failed else 0, args)


def _make_parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m paged_jax.run_batch", "Answer a file of requests offline.")
    add = parser.add_argument_group("batch").add_argument
    add("-i", "--input-file", required=True, type=Path, metavar="FILE", help="requests, JSONL")
    add("-o", "--output-file", required=True, type=Path, metavar="FILE", help="answers, JSONL")
    return parser


def prepare(source: Path, target: Path) -> set[str]:
    """Return the ids that have their answer, and drop everything else from the output.

    Raises:
        OptionError: the files cannot be read and written, or are one.
    """
    try:
        if target.exists() and source.samefile(target):
            raise OptionError("--output-file must not be the input file")
        with source.open("rb"):
            kept = list(_answered(target)) if target.exists() else []
        fresh = target.with_name(target.name + ".tmp")
        with fresh.open("w", encoding="utf-8") as out:
            out.writelines(json.dumps(line) + "\n" for line in kept)
        os.replace(fresh, target)
    except OSError as error:
        raise OptionError(f"cannot use {error.filename}: {error.strerror}") from error
    return {line["custom_id"] for line in kept}


def _answered(path: Path) -> Iterator[Json]:
    """Yield the lines that need not be made again; half a line, at the end, does."""
    with path.open("rb") as lines:
        for raw in lines:
            try:
                line = json.loads(raw)
                if isinstance(line["custom_id"], str) and line["response"]["status_code"] < 500:
                    yield line
            except (ValueError, KeyError, TypeError):
                continue


class Batch:
    """One run.

    Attributes:
        num_done: lines written by this run.
        num_failed: those of them that tell an error.
    """

    def __init__(self, engine: "AsyncEngine", settings: ServerSettings, done: set[str]):
        self._engine, self._app = engine, create_app(engine, settings)
        self._done, self._seen = done, set[str]()
        self.num_done = self.num_failed = 0

    async def run(self, source: Path, target: Path) -> None:
        """Answer every line that has no answer yet; stop if the engine fails."""
        num_at_once = 2 * self._engine.config.scheduler.max_seqs
        with source.open("rb") as lines, target.open("a", encoding="utf-8") as out:
            numbered = enumerate(_lines(lines), start=1)
            await asyncio.gather(*(self._work(numbered, out) for _ in range(num_at_once)))

    async def _work(self, numbered: Iterator[tuple[int, bytes]], out: IO[str]) -> None:
        while self._engine.is_healthy and (item := next(numbered, None)) is not None:
            line = await self._answer(*item)
            if line is None:
                continue
            self.num_done += 1
            self.num_failed += line["error"] is not None or line["response"]["status_code"] != 200
            out.write(json.dumps(line) + "\n")
            out.flush()

    async def _answer(self, number: int, raw: bytes) -> Json | None:
        """Return the line of output; None for a line that needs none."""
        try:
            custom_id, url, body = _read(raw, f"line {number}")
            if custom_id in self._seen:
                message = f"line {number}: this custom_id stands in an earlier line too"
                raise BadLine("duplicate_custom_id", message, custom_id)
            self._seen.add(custom_id)
            if custom_id in self._done:
                return None
            status, answer = await post(self._app, url, body)
        except BadLine as bad:
            return _line(bad.custom_id, None, {"code": bad.code, "message": str(bad)})
        name = f"req_{uuid.uuid4().hex}"
        return _line(custom_id, {"status_code": status, "request_id": name, "body": answer}, None)


def _line(custom_id: str | None, response: Json | None, error: Json | None) -> Json:
    name = f"batch_req_{uuid.uuid4().hex}"
    return {"id": name, "custom_id": custom_id, "response": response, "error": error}


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield lines that hold anything; of one that is too long, its beginning."""
    while raw := file.readline(MAX_LINE_BYTES + 1):
        rest = raw
        while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE_BYTES + 1)
        if raw.strip():
            yield raw


def _read(raw: bytes, where: str) -> tuple[str, str, bytes]:
    """Return a line's custom_id, url and body, checked as far as the server does not check it."""
    if len(raw) > MAX_LINE_BYTES:
        raise BadLine("invalid_line", f"{where} is longer than {MAX_LINE_BYTES} bytes")
    try:
        read: object = json.loads(raw)
        request = cast(Json, read) if isinstance(read, dict) else {}
        body = json.dumps(request.get("body")).encode()
    except (ValueError, RecursionError):
        raise BadLine("invalid_line", f"{where} is not JSON") from None
    custom_id = request.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise BadLine("invalid_custom_id", f"{where} needs a custom_id, a non-empty string")
    if request.get("method", "POST") != "POST":
        raise BadLine("invalid_method", f"{where}: method must be POST", custom_id)
    if request.get("url") not in URLS:
        raise BadLine("invalid_url", f"{where}: url must be one of {', '.join(URLS)}", custom_id)
    if isinstance(request.get("body"), dict) and request["body"].get("stream"):
        raise BadLine("invalid_body", f"{where}: stream is not for batches", custom_id)
    return custom_id, request["url"], body


async def post(app: ASGIApp, path: str, body: bytes) -> tuple[int, Json]:
    """Return the status and the JSON with which the application answers a POST."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await asyncio.Event().wait()  # nobody hangs up
        raise AssertionError("an event that nobody sets was set")

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
    }
    await app(scope, receive, send)
    text = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(text)


if __name__ == "__main__":
    sys.exit(main())
