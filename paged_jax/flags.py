"""The flags of paged_jax.serve: one for each field of EngineArgs, and those of the HTTP side.

Dashes and underscores are the same. A wrong flag ends the program with one line that names it, and
code 2.
"""

import argparse
import difflib
import ipaddress
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from importlib.util import find_spec
from typing import Any, NoReturn

import paged_jax
from paged_jax.config import OptionError
from paged_jax.engine_args import EngineArgs, option_kind
from paged_jax.text.reasoning import REASONING_PARSERS
from paged_jax.text.tool_calls import TOOL_CALL_PARSERS

API_KEY_VARIABLE = "PAGED_JAX_API_KEY"
COUNTS = {"": 1, "k": 1000, "K": 1 << 10, "m": 10**6, "M": 1 << 20}
SIZES = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
ALIASES = {"kv_cache_memory": ("--kv-cache-memory-bytes",)}
IGNORED = {
    "--disable-log-requests": "it is the default",
    "--disable-uvicorn-access-log": "there is no access log",
    "--enable-chunked-prefill": "it is always on",
    "--enable-prompt-tokens-details": "they are always reported",
    "--generation-config": "the model's own defaults are used",
    "--trust-remote-code": "code from a model folder is never run",
}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def parse(
    argv: Sequence[str], *, parser: argparse.ArgumentParser | None = None
) -> tuple[argparse.Namespace, EngineArgs]:
    """Return the server's options and the engine's, checked; exit with code 2 if any is wrong."""
    parser = parser or make_parser()
    options, unknown = parser.parse_known_args([_dashed(word) for word in argv])
    if unknown:
        parser.error(_unknown(parser, unknown[0]))
    if options.model is not None and options.positional is not None:
        parser.error("argument --model: the model is given twice")
    options.model = options.model or options.positional
    if options.enable_auto_tool_choice and options.tool_call_parser is None:
        parser.error("argument --enable-auto-tool-choice: needs --tool-call-parser")
    if options.otlp_traces_endpoint is not None and not _can_trace():
        parser.error(
            "argument --otlp-traces-endpoint: needs OpenTelemetry: pip install 'paged_jax[traces]'"
        )
    is_guarded = options.api_key or os.environ.get(API_KEY_VARIABLE) or options.allow_no_key
    if not is_guarded and not is_loopback(options.host):
        parser.error(
            f"argument --host: others can reach {options.host}, so set --api-key or "
            f"{API_KEY_VARIABLE}, or say --allow-no-key"
        )
    try:
        return options, read_engine_args(options)
    except OptionError as error:
        parser.error(str(error))


def _can_trace() -> bool:
    try:
        return find_spec("opentelemetry.sdk") is not None and bool(
            find_spec("opentelemetry.exporter.otlp.proto.grpc")
        )
    except ModuleNotFoundError:
        return False


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every field of EngineArgs."""
    group = parser.add_argument_group("engine")
    for spec in fields(EngineArgs):
        _add_engine_flag(group, spec)


def read_engine_args(options: argparse.Namespace) -> EngineArgs:
    """Return what the flags of `add_engine_flags` say; raises OptionError."""
    values = {spec.name: getattr(options, spec.name) for spec in fields(EngineArgs)}
    return EngineArgs(**values).validate()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _dashed(word: str) -> str:
    """Let --max_model_len stand for --max-model-len."""
    name, equals, value = word.partition("=")
    return (name.replace("_", "-") if name.startswith("--") else name) + equals + value


def _unknown(parser: argparse.ArgumentParser, word: str) -> str:
    flags = [flag for action in parser._actions for flag in action.option_strings]
    close = difflib.get_close_matches(word.partition("=")[0], flags, n=1)
    return f"unknown option {word}" + (f"; did you mean {close[0]}?" if close else "")


def make_parser(
    program: str = "python -m paged_jax.serve",
    description: str = "Serve a model through an OpenAI-compatible API.",
) -> argparse.ArgumentParser:
    """Return the parser of all flags; those of the engine are the fields of EngineArgs."""
    parser = _Parser(prog=program, description=description, allow_abbrev=False)
    parser.add_argument("positional", metavar="MODEL", nargs="?", help="the same as --model")
    parser.add_argument("--version", action="version", version=f"paged_jax {paged_jax.__version__}")
    add_engine_flags(parser)
    _add_server_flags(parser.add_argument_group("server"))
    accepted = parser.add_argument_group("accepted, without effect")
    for flag, reason in IGNORED.items():
        nargs = 1 if flag == "--generation-config" else 0
        accepted.add_argument(flag, action=_Ignored, nargs=nargs, dest="ignored", help=reason)
    return parser


def _add_engine_flag(group: "argparse._ArgumentGroup", spec: "Field[Any]") -> None:
    flags = ("--" + spec.name.replace("_", "-"), *ALIASES.get(spec.name, ()))
    kind, text = option_kind(spec), spec.metadata["help"].replace("%", "%%")
    if spec.default is not None:
        text += f" (default: {spec.default})"
    if kind is bool:
        group.add_argument(
            *flags, action=argparse.BooleanOptionalAction, default=spec.default, help=text
        )
        return
    choices = spec.metadata["choices"]
    read = _read_size if spec.name in ALIASES else _READERS[kind]
    metavar = "{" + ",".join(choices) + "}" if choices else spec.name.split("_")[-1].upper()
    group.add_argument(*flags, type=read, default=spec.default, metavar=metavar, help=text)


def _add_server_flags(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=_read_port, default=8000, help="0 is any free one (default: %(default)s)")
    add("--served-model-name", nargs="+", metavar="NAME", help="names clients may ask for")
    add(
        "--api-key",
        action="append",
        metavar="KEY",
        help=f"demanded from clients; may be repeated; {API_KEY_VARIABLE} adds one",
    )
    add("--allow-no-key", action="store_true", help="let others ask without a key")
    _add_limits(group)
    add("--enable-auto-tool-choice", action="store_true", help="let the model call tools")
    add(
        "--tool-call-parser",
        choices=tuple(TOOL_CALL_PARSERS),
        help="how the model writes tool calls; used with --enable-auto-tool-choice",
    )
    add(
        "--reasoning-parser",
        choices=tuple(REASONING_PARSERS),
        help="tell <think>...</think> from the answer",
    )
    _add_log_flags(group)


def _add_limits(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--isolate-api-keys", action="store_true", help="a prefix cache for each API key")
    add(
        "--allowed-hosts",
        nargs="+",
        metavar="HOST",
        help="hosts a request may name; by default this machine's if only it can ask, else all",
    )
    add(
        "--max-concurrent-requests",
        type=_read_positive,
        default=4096,
        metavar="N",
        help="requests answered or waiting at once; others get 429 (default: %(default)s)",
    )
    for flag, default, text in (
        ("--request-timeout", 3600.0, "after which a request is ended; 0 is never"),
        ("--watchdog-timeout", 120.0, "without progress that turn /health red"),
        ("--shutdown-timeout", 15.0, "that running requests may go on after a signal"),
    ):
        text = f"seconds {text} (default: {default:g})"
        add(flag, type=_read_seconds, default=default, metavar="SECONDS", help=text)


def _add_log_flags(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    levels = ("debug", "info", "warning", "error")
    add("--log-level", choices=levels, default="info", help="(default: %(default)s)")
    add("--log-format", choices=("text", "json"), default="text", help="(default: %(default)s)")
    add(
        "--enable-log-requests",
        action="store_true",
        help="a line for each request that ended: id, counts and times, never its text",
    )
    add(
        "--metrics-alias",
        choices=("vllm",),
        help="tell each paged_jax: metric under this prefix too",
    )
    add(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="OpenTelemetry collector that gets a span of each request, by gRPC",
    )
    add(
        "--log-stats-interval",
        type=_read_seconds,
        default=10.0,
        metavar="SECONDS",
        help="between lines about the load; 0 is off (default: %(default)s)",
    )


class _Ignored(argparse.Action):
    """Remembers that a flag without effect was given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        namespace.ignored = [*(namespace.ignored or ()), option_string]


def _scaled(text: str, units: dict[str, int]) -> int:
    match = re.fullmatch(r"(-?\d{1,30})([A-Za-z]*)", text)
    if match is None or match[2] not in units:
        names = ", ".join(name for name in units if name)
        raise argparse.ArgumentTypeError(
            f"must be a whole number (suffixes: {names}), not {text[:80]!r}"
        )
    return int(match[1]) * units[match[2]]


def _read_count(text: str) -> int:
    return _scaled(text, COUNTS)


def _read_size(text: str) -> int:
    return _scaled(text, SIZES)


def _read_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text[:80]!r}") from None


def _read_seconds(text: str) -> float:
    seconds = _read_float(text)
    if not 0 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"must be between 0 and 86400 seconds, not {text[:80]}")
    return seconds


def _read_port(text: str) -> int:
    port = _read_count(text)
    if not 0 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"must be between 0 and 65535, not {port}")
    return port


def _read_positive(text: str) -> int:
    count = _read_count(text)
    if not 1 <= count <= 10**6:
        raise argparse.ArgumentTypeError(f"must be between 1 and 1000000, not {text[:80]}")
    return count


_READERS: dict[type, Callable[[str], Any]] = {int: _read_count, float: _read_float, str: str}
