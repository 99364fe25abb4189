"""Compile a function for a GPU that is not there, and report what came out.

XLA writes the PTX that it would run on the described GPU: JAX's own fusions and Pallas kernels
alike. Matrix products are in a default configuration, since tuning them needs the GPU.
"""

import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import NamedSharding, PartitionSpec

from paged_jax.bench.gpu_target import H200, make_mesh
from paged_jax.bench.machine_code import KernelReport, Launch, read_kernels
from paged_jax.device.sharding import jit_on

ITEM_BITS = re.compile(r"(?:pred|[a-z]+(\d+))")
COPY = re.compile(r"= (\w+)\[([\d,]*)\]\S* (?:copy|copy-start)\(")
THUNK = re.compile(r"^( *)\d+: (k\w+)", re.MULTILINE)
LAUNCH = re.compile(r"\] (\S+) grid: \[([\d, ]+)\] threads: \[([\d, ]+)\]\s+shared_memory: (\d+)")


@dataclass(frozen=True)
class Program:
    """A function and the shapes to compile it for.

    Attributes:
        arguments: abstract or concrete; pytrees of arrays.
        donate: which arguments the function may overwrite.
        specs: how arguments lie on the mesh's axis "tensor", a prefix tree; None repeats all.
        outs: how results are, for a function that runs on each device in a `shard_map`; None leaves
            the division of the work to XLA.
        num_devices: 1, or the number of GPUs to divide the program among.
        watched: beginnings of the names of the kernels whose instructions are counted.
    """

    name: str
    function: Callable[..., Any]
    arguments: Sequence[Any]
    donate: tuple[int, ...] = ()
    specs: Any = None
    outs: Any = None
    num_devices: int = 1
    watched: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProgramReport:
    """What a program compiles to.

    Attributes:
        kernels: in the order XLA numbered them, then Mosaic GPU's.
        sequence: what the host starts at the top level, in order (kCommandBuffer, kWhile...).
        thunks: how often each kind of thing is run, inside loops and command buffers too.
        copies: bytes of each array that is copied from one place to another.
        all_reduces: sums over devices.
        alias_bytes: outputs that overwrite donated arguments.
        temp_bytes: memory needed beside arguments and outputs.
    """

    name: str
    kernels: tuple[KernelReport, ...]
    sequence: tuple[str, ...]
    thunks: Mapping[str, int]
    copies: tuple[int, ...]
    all_reduces: int
    alias_bytes: int
    temp_bytes: int

    @property
    def num_command_buffers(self) -> int:
        """How many CUDA graphs the program holds."""
        return self.thunks.get("kCommandBuffer", 0)

    @property
    def largest_copy(self) -> int:
        """Bytes of the largest copied array; 0 if none is."""
        return max(self.copies, default=0)


@contextmanager
def gpu_mesh(num_devices: int = 1) -> Iterator[jax.sharding.Mesh]:
    """Trace what is inside for described GPUs: `platform.target()` says "gpu" there."""
    mesh = make_mesh(H200, num_devices)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        yield mesh


def compile_program(program: Program) -> ProgramReport:
    """Compile `program` for H200s and read what came out.

    Raises:
        jax.errors.JaxRuntimeError: it does not fit (shared memory, for one).
    """
    with tempfile.TemporaryDirectory() as name, _dumping(Path(name)) as options:
        lowered = _lower(program)
        with _without_cache():
            compiled = lowered.compile(compiler_options=options)
        return _read(program, compiled, Path(name))


def _lower(program: Program) -> Any:
    with gpu_mesh(program.num_devices) as mesh:
        specs = PartitionSpec() if program.specs is None else program.specs
        is_spec = lambda leaf: isinstance(leaf, PartitionSpec)  # noqa: E731
        place = lambda spec, tree: jax.tree.map(lambda leaf: _placed(leaf, spec, mesh), tree)  # noqa: E731
        arguments = jax.tree.map(place, specs, tuple(program.arguments), is_leaf=is_spec)
        divides = None if program.outs is None else mesh
        jitted = jit_on(
            divides, program.function, arguments, outs=program.outs, donate=program.donate
        )
        return jitted.trace(*arguments).lower(lowering_platforms=("cuda",))


def _placed(leaf: Any, spec: PartitionSpec, mesh: jax.sharding.Mesh) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))


@contextmanager
def _dumping(folder: Path) -> Iterator[dict[str, str | bool]]:
    """Ask both compilers for their PTX: XLA by options, Mosaic GPU by environment variables."""
    asked = {"MOSAIC_GPU_DUMP_TO": str(folder / "mosaic"), "MOSAIC_GPU_DUMP_PTX": "1"}
    before = {name: os.environ.get(name) for name in asked}
    (folder / "mosaic").mkdir()
    os.environ.update(asked)
    try:
        yield {
            "xla_dump_to": str(folder),
            "xla_dump_hlo_as_text": True,
            "xla_dump_emitter_re": "ptx",
        }
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


@contextmanager
def _without_cache() -> Iterator[None]:
    """Compile anew: a program from JAX's compilation cache leaves no dump."""
    is_enabled = getattr(jax.config, "jax_enable_compilation_cache", True)
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", is_enabled)
        compilation_cache.reset_cache()


def _read(program: Program, compiled: Any, folder: Path) -> ProgramReport:
    run_list = _run_list(folder)
    thunks = THUNK.findall(run_list)
    text, memory = compiled.as_text(), compiled.memory_analysis()
    return ProgramReport(
        name=program.name,
        kernels=tuple(_kernels(folder, run_list, program.watched)),
        sequence=tuple(kind for indent, kind in thunks if not indent),
        thunks=Counter(kind for _, kind in thunks),
        copies=tuple(_array_bytes(*found) for found in COPY.findall(text)),
        all_reduces=len(re.findall(r" all-reduce(?:-start)?\(", text)),
        alias_bytes=memory.alias_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
    )


def _kernels(folder: Path, run_list: str, watched: tuple[str, ...]) -> Iterator[KernelReport]:
    launches = {found[1]: _launch(found) for found in LAUNCH.finditer(run_list)}
    for path in sorted(folder.glob("*.ptx"), key=_number_of):
        yield from read_kernels(path, launches, H200, watched=watched)
    for path in sorted((folder / "mosaic").glob("*.ptx")):
        yield from read_kernels(path, _mosaic_launches(path), H200, watched=("",))


def _run_list(folder: Path) -> str:
    """XLA's list of what is run; the one after its last passes, where it wrote both."""
    found = sorted(folder.glob("*.thunk_sequence*.txt"))
    assert found, "XLA wrote no thunk sequence"
    return next((path for path in found if "after" in path.name), found[-1]).read_text()


def _number_of(path: Path) -> int:
    return int(path.name.split(".")[-2])


def _launch(found: re.Match[str]) -> Launch:
    sizes = lambda text: tuple(int(size) for size in text.split(","))  # noqa: E731
    return Launch(sizes(found[2]), math.prod(sizes(found[3])), int(found[4]))


def _mosaic_launches(ptx: Path) -> Mapping[str, Launch]:
    """The launch in the log of passes beside the PTX, whatever the name of the kernel."""
    log = ptx.with_suffix(".mlir-passes.log")
    if not log.exists():
        return {}
    with log.open() as lines:
        line = next((line for line in lines if "gpu.launch" in line and "= %c" in line), "")
    sizes = [int(size) for size in re.findall(r"= %c(\d+)", line)]
    shared = re.search(r"dynamic_shared_memory_size %c(\d+)", line)
    launch = Launch(tuple(sizes[:3]), math.prod(sizes[3:6]), int(shared[1]) if shared else 0)
    return dict.fromkeys(re.findall(r"\.entry (\w+)", ptx.read_text()), launch)


def _array_bytes(dtype: str, shape: str) -> int:
    """Bytes of an array in HLO's notation: bf16[32,8]."""
    found = ITEM_BITS.match(dtype)
    bits = int(found[1] or 8) if found else 8
    return math.prod(int(size) for size in shape.split(",") if size) * bits // 8
