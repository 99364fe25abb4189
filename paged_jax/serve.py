"""python -m paged_jax.serve: flags -> engine -> HTTP server.

The port is bound before the model is loaded and listened on once the engine is warm. The first
SIGTERM or SIGINT drains, the second ends the process at once; during start-up either ends it at
once. Exit codes: 0 after a drain, 1 for a model or engine that failed, 2 for a wrong option.
"""

import argparse
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette

import paged_jax
from paged_jax.config import OptionError
from paged_jax.engine_args import EngineArgs
from paged_jax.flags import API_KEY_VARIABLE, IGNORED, is_loopback, parse
from paged_jax.log_format import configure_logging
from paged_jax.phases import PhaseClock
from server import ServerSettings, create_app
from server.connection import GuardedProtocol

if TYPE_CHECKING:
    from paged_jax.async_engine import AsyncEngine

logger = logging.getLogger("paged_jax")

FLUSH_S = 3
RED_S = 2.0  # from the failure of the engine to the end, for /health to be seen red


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code. Wrong flags exit with code 2 by SystemExit."""
    options, args = parse(sys.argv[1:] if argv is None else argv)
    configure_logging(options.log_format, options.log_level)
    for flag in options.ignored or ():
        logger.warning("%s is ignored: %s", flag, IGNORED[flag])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if args.node_rank > 0:
        return follow(args, options.log_level)
    try:
        listener = bind(options.host, options.port)
        engine, options.platform = load(args)
    except Exception as error:
        return leave(report(error, with_traceback=options.log_level == "debug"), args)
    return leave(serve(engine, options, listener), args)


def leave(code: int, args: EngineArgs) -> int:
    """Return the exit code; a failure beside other hosts ends at once, as JAX waits for them."""
    if code and args.nnodes > 1:
        os._exit(code)
    return code


def load(args: EngineArgs) -> "tuple[AsyncEngine, str]":
    """Return a warm engine and its device's kind; blocks until the model is loaded and compiled."""
    from jax import default_backend  # here, so that a wrong flag is told at once

    from paged_jax.async_engine import AsyncEngine

    gc.disable()  # nothing of a start is garbage, and looking for it takes a tenth of the time
    engine = AsyncEngine.from_args(args, clock=PhaseClock(since_s=paged_jax.IMPORTED_S))
    gc.freeze()
    gc.enable()
    return engine, default_backend().upper()


def follow(args: EngineArgs, log_level: str) -> int:
    """Be one of the other hosts; return the exit code."""
    try:
        from paged_jax.cluster.follower import follow as follow_rank_0

        return follow_rank_0(args)
    except Exception as error:
        return leave(report(error, with_traceback=log_level == "debug"), args)


def report(error: Exception, *, with_traceback: bool) -> int:
    """Print the cause in one line, the last one; return the exit code."""
    if with_traceback:
        logger.error("Could not start", exc_info=error)
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"error: {text[:2000]}", file=sys.stderr)
    return 2 if isinstance(error, OptionError) else 1


def bind(host: str, port: int) -> socket.socket:
    """Reserve the port without listening on it yet.

    Raises:
        OSError: the address cannot be had; the message names it.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listener


def serve(engine: "AsyncEngine", options: argparse.Namespace, listener: socket.socket) -> int:
    """Serve until a signal or until the engine fails; return the exit code."""
    app = create_app(engine, settings_of(engine, options))
    engine.start()
    server = DrainingServer(app, engine, options.shutdown_timeout)
    try:
        server.run(sockets=[listener])
    except OSError as error:
        return report(error, with_traceback=options.log_level == "debug")
    finally:
        is_failed = not engine.is_healthy
        engine.close()
    return 1 if is_failed else 0


def settings_of(engine: "AsyncEngine", options: argparse.Namespace) -> ServerSettings:
    """Return what the HTTP side needs to know of the flags and of the environment."""
    own_key = os.environ.get(API_KEY_VARIABLE)
    name = engine.config.model_name
    return ServerSettings(
        served_names=tuple(options.served_model_name or [name]),
        root=name,
        version=paged_jax.__version__,
        api_keys=(*(options.api_key or ()), *([own_key] if own_key else ())),
        log_interval_s=0.0 if options.disable_log_stats else options.log_stats_interval,
        platform=options.platform,
        tool_call_parser=options.tool_call_parser if options.enable_auto_tool_choice else None,
        reasoning_parser=options.reasoning_parser,
        has_metrics_alias=options.metrics_alias == "vllm",
        logs_requests=options.enable_log_requests,
        allowed_hosts=hosts_of(options),
        isolates_keys=options.isolate_api_keys,
        max_requests=options.max_concurrent_requests,
        request_timeout_s=options.request_timeout,
        watchdog_s=options.watchdog_timeout,
        traces_endpoint=options.otlp_traces_endpoint,
    )


def hosts_of(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the hosts that requests may name: all, or this machine's if only that can ask."""
    if options.allowed_hosts:
        return tuple(host.lower() for host in options.allowed_hosts)
    return ("localhost", "127.0.0.1", "[::1]", options.host) if is_loopback(options.host) else ()


class DrainingServer(uvicorn.Server):
    """uvicorn, but a signal lets running requests end while new ones and /health get 503."""

    def __init__(self, app: Starlette, engine: "AsyncEngine", drain_s: float):
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            http=GuardedProtocol,
            timeout_graceful_shutdown=FLUSH_S,
        )
        super().__init__(config)
        self._engine, self._drain_s = engine, drain_s
        self._failed_s: float | None = None  # when that was seen

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            logger.info("Uvicorn running on http://%s:%d (Press CTRL+C to quit)", shown, port)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, end at the second."""
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Whether to leave: after a signal, or RED_S after the engine has failed."""
        now_s = time.monotonic()
        if self._failed_s is None and not self._engine.is_healthy:
            self._failed_s = now_s
        is_seen = self._failed_s is not None and now_s - self._failed_s >= RED_S
        return await super().on_tick(counter) or is_seen

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running requests end, still answering; then close."""
        self.should_exit = True
        logger.info("Draining: up to %g s for running requests", self._drain_s)
        await self._engine.drain(self._drain_s)
        await super().shutdown(sockets)


if __name__ == "__main__":
    sys.exit(main())
