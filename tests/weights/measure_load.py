"""python tests/weights/measure_load.py: how much memory it takes to load a checkpoint of 1 GB.

Not a test, as it takes a gigabyte of disk and of memory: it writes a dummy model, loads it in fresh
processes (one host, then two hosts with half of the devices each) and prints for each process the
bytes of the parts it holds and the most memory it took beyond what it had before (it has read one
number then, so that the libraries' code is there).
"""

import gc
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

TENSOR = 4
SIZES = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 10,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 16384,
    "max_position_embeddings": 512,
    "dtype": "bfloat16",
}


def main(arguments: list[str]) -> None:
    """Measure; with arguments (folder, rank, number of hosts, address) be one of the processes."""
    if arguments:
        folder, rank, hosts, address = arguments
        load(Path(folder), int(rank), int(hosts), address)
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        for hosts in (1, 2):
            address = f"127.0.0.1:{20000 + os.getpid() % 20000}"
            command = [sys.executable, __file__, folder]
            ranks = [
                subprocess.Popen([*command, str(rank), str(hosts), address])
                for rank in range(hosts)
            ]
            assert not any(process.wait() for process in ranks), "a process failed"


def write(folder: Path) -> None:
    """Write a Qwen3 of 1.08 GB whose numbers are small and random."""
    from paged_jax.models.families import config_from_hf
    from paged_jax.models.params import abstract_params
    from paged_jax.weights.orbax_writer import write_checkpoint
    from paged_jax.weights.safetensors_reader import name_of

    rng, tensors = np.random.default_rng(0), {}
    config = config_from_hf(SIZES, {}, where="config.json", dtype="bfloat16")
    leaves, _ = jax.tree_util.tree_flatten_with_path(abstract_params(config))
    for path, leaf in leaves:
        name = name_of(path[-1].name, path[1].idx if len(path) > 1 else None)
        bits = rng.integers(0, 1 << 14, math.prod(leaf.shape), np.uint16)
        is_turned = path[-1].name.startswith("w_") or path[-1].name == "unembed"
        shape = leaf.shape[::-1] if is_turned else leaf.shape
        tensors[name] = bits.view(ml_dtypes.bfloat16).reshape(shape)
    (folder / "config.json").write_text(json.dumps(SIZES))
    write_checkpoint(folder, tensors)


def load(folder: Path, rank: int, hosts: int, address: str) -> None:
    """Load this host's part and print what it took."""
    jax.config.update("jax_num_cpu_devices", TENSOR // hosts)
    if hosts > 1:
        jax.distributed.initialize(address, num_processes=hosts, process_id=rank)
    from paged_jax.config import MeshShape
    from paged_jax.device.sharding import make_mesh
    from paged_jax.weights.load import load_params, open_checkpoint, read_config
    from paged_jax.weights.source import resolve_model

    source, mesh = resolve_model(str(folder)), make_mesh(MeshShape(tensor=TENSOR))
    config = read_config(source, dtype="bfloat16", is_divided=True)
    checkpoint, _ = open_checkpoint(source, config)
    jnp.asarray(checkpoint.read("model.norm.weight", (slice(0, 1),))).block_until_ready()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status_bytes("VmRSS")
    params = jax.block_until_ready(load_params(source, config, mesh=mesh, progress=False))
    leaves = jax.tree.leaves(params)
    held = sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards)
    peak = status_bytes("VmHWM") - before
    print(f"host {rank} of {hosts}: holds {held:,} bytes, peak {peak:,}, {peak / held:.2f} times")


def status_bytes(field: str) -> int:
    """Return a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


if __name__ == "__main__":
    main(sys.argv[1:])
