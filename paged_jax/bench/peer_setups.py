"""How each peer is set for the side-by-side runs: its program, model and settings.

`peers/setup.sh DIR` makes the folder. Settings are those that were fastest among a few tried, or
the peer's defaults.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from paged_jax.bench.backends import Peer
from paged_jax.bench.workloads import Workload

PREFIX_LOADS = ("W4", "W4W")


@dataclass(frozen=True)
class Setup:
    """One peer. Paths are relative to the peers' folder until `within` is called.

    Attributes:
        name: what it is called in results; `kind` is the backend that runs it.
        server_options: flags of its server, where there is one.
        per_load: options that a workload needs; workloads with other options get a process of
            their own.
        left_out: workloads that it is not measured on.
    """

    name: str
    kind: str
    program: str
    model: str
    dtype: str = "bfloat16"
    options: Mapping[str, str] = field(default_factory=dict)
    server_options: Mapping[str, str] = field(default_factory=dict)
    per_load: Callable[[str], Mapping[str, str]] = lambda name: {}
    environment: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def within(self, folder: Path) -> "Setup":
        """Return the same with absolute paths."""
        absolute = lambda path: str(folder.resolve() / path) if path else ""  # noqa: E731
        program = absolute(self.program) or sys.executable
        environment = {
            name: value.replace("PEERS", str(folder.resolve()))
            for name, value in self.environment.items()
        }
        return replace(self, program=program, model=absolute(self.model), environment=environment)

    def with_dtype(self, dtype: str) -> "Setup":
        """Return the same in another dtype, which is part of its name."""
        return replace(self, dtype=dtype, name=f"{self.name} {dtype}")

    def runs(self, workload: str) -> bool:
        """Whether it is measured on a workload."""
        return workload not in self.left_out

    def groups(self, workloads: Mapping[str, Workload]) -> list[dict[str, Workload]]:
        """Part workloads by the options they need."""
        groups: dict[str, dict[str, Workload]] = {}
        for name, load in workloads.items():
            groups.setdefault(repr(self.per_load(name)), {})[name] = load
        return list(groups.values())

    def peer(self, workloads: Mapping[str, Workload]) -> Peer:
        """Return what to start for offline workloads of one group."""
        options = {**self.options, **self.per_load(next(iter(workloads)))}
        return Peer(
            self.kind,
            self.program,
            self.model,
            self.dtype,
            options=options,
            environment=self.environment,
        )

    def server(self, workloads: Mapping[str, Workload], *, max_concurrency: int) -> Peer:
        """Return the server to start for online workloads."""
        options = {**self.server_options, **self.per_load(next(iter(workloads)))}
        return Peer(
            self.kind, self.program, self.model, self.dtype, options=options,
            environment=self.environment, max_concurrency=max_concurrency,
        )  # fmt: skip


def _vllm_caching(workload: str) -> dict[str, str]:
    """Prefix caching costs vLLM speed where nothing is shared, so it is off there."""
    return {"enable_prefix_caching": "true" if workload in PREFIX_LOADS else "false"}


def _llama_slots(workload: str) -> dict[str, str]:
    slots = {"W1": (1, 2048), "W4": (32, 36864), "W4W": (32, 36864), "W5": (32, 24576)}
    parallel, context = slots.get(workload, (64, 49152))
    return {"np": str(parallel), "c": str(context)}


_VLLM = {"max_model_len": "2048", "max_num_seqs": "64"}
_VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "0-1",
    "LD_PRELOAD": "libtcmalloc_minimal.so.4:PEERS/vllm/lib/libiomp5.so",
    "HF_HUB_OFFLINE": "1",
}
SETUPS = {
    setup.name: setup
    for setup in (
        Setup("paged_jax", "paged_jax", "", "smollm2-hf", options={"max_model_len": "2048"},
              server_options={"max_model_len": "2048"}),
        Setup("vllm", "vllm", "vllm/bin/python", "smollm2-hf", options=_VLLM,
              server_options=_VLLM, per_load=_vllm_caching, environment=_VLLM_ENVIRONMENT),
        Setup("openvino", "openvino", "ov/bin/python", "smollm2-ov-fp16", left_out=("W5",)),
        Setup("llama.cpp", "llama.cpp", "llama-server", "smollm2-BF16.gguf",
              per_load=_llama_slots),
        Setup("transformers", "transformers", "hf/bin/python", "smollm2-hf",
              options={"mode": "static"}, left_out=("W4", "W4W", "W5")),
    )
}  # fmt: skip
