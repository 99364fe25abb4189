"""Counting compilations that happen outside the programs, and the cache that compiled ones are kept
in across processes.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

logger = logging.getLogger("paged_jax")

_COMPILED: defaultdict[int, list[str]] = defaultdict(list)  # names per thread, by jax's events


def _on_duration(event: str, duration_secs: float, **details: str | int) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        _COMPILED[threading.get_ident()].append(str(details.get("fun_name", "?")))


jax.monitoring.register_event_duration_secs_listener(_on_duration)


class CompileCounter:
    """Counts the compilations of the blocks of code it watches, and says what was compiled."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count what this thread compiles inside."""
        compiled = _COMPILED[threading.get_ident()]
        compiled.clear()
        try:
            yield
        finally:
            self.count += len(compiled)
            for name in compiled:
                logger.warning("%s was compiled while serving: steps wait for it", name)


def use_compilation_cache(folder: Path) -> None:
    """Keep every compiled program in `folder` across processes, unless the user chose a place."""
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
