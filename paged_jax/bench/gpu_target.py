"""A GPU described in writing, so that XLA's GPU compiler can work for it on a machine without one.

The compiler is in JAX's CUDA plug-in; it needs neither a GPU nor NVIDIA's driver, only figures of
the chip, in the text form of XLA's GpuTargetConfigProto.
"""

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.experimental import topologies

from paged_jax.device.sharding import AXES

PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")


@dataclass(frozen=True)
class GPU:
    """What kernels and the compiler need to know of a chip; sizes in bytes.

    Attributes:
        arch: ptxas's name; the "a" stands for what is particular to this very architecture (wgmma).
        num_sms: streaming multiprocessors; the figures below it are for each of them.
        reserved_shared_bytes: what the system takes of the shared memory for each block.
    """

    name: str
    arch: str
    num_sms: int
    registers: int
    shared_bytes: int
    max_threads: int
    max_blocks: int
    block_shared_bytes: int
    reserved_shared_bytes: int
    memory_bytes: int
    bandwidth: int
    l2_bytes: int

    def describe(self) -> str:
        """Return the GpuTargetConfigProto as text."""
        return f"""
          platform_name: "CUDA"
          device_description_str: "{self.name}"
          dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
          gpu_device_info {{
            name: "{self.name}" model_str: "{self.arch}" device_vendor: "NVIDIA Corporation"
            cuda_compute_capability {{
              major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES
            }}
            core_count: {self.num_sms} fpus_per_core: 128 clock_rate_ghz: 1.98
            threads_per_warp: 32 threads_per_block_limit: 1024
            threads_per_core_limit: {self.max_threads}
            registers_per_core_limit: {self.registers} registers_per_block_limit: {self.registers}
            shared_memory_per_core: {self.shared_bytes} shared_memory_per_block: 49152
            shared_memory_per_block_optin: {self.block_shared_bytes}
            block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
            thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
            device_memory_size: {self.memory_bytes} memory_bandwidth: {self.bandwidth}
            l2_cache_size: {self.l2_bytes} device_address_bits: 64 ecc_enabled: true
            pcie_bandwidth: 34359738368
            driver_version: "13.0.0" runtime_version: "13.0.0"
            compile_time_toolkit_version: "13.0.0" dnn_version: "9.10.0"
          }}
        """


H200 = GPU(
    name="NVIDIA H200",
    arch="sm_90a",
    num_sms=132,
    registers=65536,
    shared_bytes=233472,
    max_threads=2048,
    max_blocks=32,
    block_shared_bytes=232448,
    reserved_shared_bytes=1024,
    memory_bytes=151397597184,
    bandwidth=4_800_000_000_000,
    l2_bytes=52428800,
)


def missing() -> str | None:
    """Return what this machine lacks for compiling, as a sentence with the remedy; None if fine."""
    if not any(importlib.util.find_spec(name) for name in PLUGINS):
        return "compiling for a GPU needs JAX's CUDA plug-in: run `make check-gpu-compile`"
    if find_tool("ptxas") is None:
        return "compiling for a GPU needs ptxas: pip install 'nvidia-cuda-nvcc==13.0.*'"
    return None


def find_tool(name: str) -> Path | None:
    """Return the path of one of NVIDIA's tools: from its wheel, or else a toolkit's."""
    nvidia = importlib.util.find_spec("nvidia")
    folders = (nvidia.submodule_search_locations or ()) if nvidia else ()
    wheels = [path for folder in folders for path in Path(folder).glob(f"*/bin/{name}")]
    found = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
    return wheels[0] if wheels else Path(found) if found else None


def make_mesh(gpu: GPU, num_devices: int) -> jax.sharding.Mesh:
    """Return a mesh of devices that can only be compiled for, all along the axis "tensor"."""
    described = topologies.get_topology_desc(
        platform="cuda",
        topology_name="",
        target_config=gpu.describe(),
        topology=f"1x1x{num_devices}",
    )
    return topologies.make_mesh(described, (1, 1, num_devices), AXES)
