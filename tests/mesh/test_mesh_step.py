"""What one step on a mesh computes, exchanges and holds, read from the compiled program."""

import re
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from drive import make_sequences
from tiny import tiny_model_config

from paged_jax.compiled.staged_programs import StagedPrograms
from paged_jax.compiled.step import backbone
from paged_jax.config import (
    CacheConfig,
    EngineConfig,
    MeshShape,
    ModelConfig,
    Quantisation,
    SchedulerConfig,
)
from paged_jax.device.kv_pool import init_pool
from paged_jax.device.sharding import POOL, REPLICATED, device_bytes_of, jit_on, make_mesh
from paged_jax.device.step_batch import BatchShape, pack
from paged_jax.host.request import Chunk
from paged_jax.models.layout import WeightLayout, divided, with_own_head
from paged_jax.weights.dummy import dummy_params

BLOCK_SIZE = 4
CACHE = CacheConfig(num_blocks=32, block_size=BLOCK_SIZE)
COLLECTIVE = re.compile(r" (all-reduce|all-gather|all-to-all|reduce-scatter|collective-\w+)\(")
TEXTS = [list(range(5, 16)), list(range(40, 47))]

QWEN3 = tiny_model_config(family="qwen3", num_q_heads=16, num_kv_heads=8, qk_norm=True)
LLAMA = tiny_model_config(num_q_heads=8, num_kv_heads=2, attention_bias=True, mlp_bias=True)
INT8 = replace(LLAMA, quantisation=Quantisation("int8"))
INT4 = replace(LLAMA, quantisation=Quantisation("awq", bits=4, group_size=16))
CASES = {
    "qwen3 on 2": (QWEN3, 2),
    "two key/value heads on 8": (LLAMA, 8),
    "int8 on 4": (INT8, 4),
    "int4 in groups on 2": (INT4, 2),
}


def run(config: ModelConfig, tensor: int):
    """Return the step's hidden states, compiled program, and pool before it."""
    mesh, model = make_mesh(MeshShape(tensor=tensor)), divided(config, tensor)
    params = dummy_params(config, 0, WeightLayout(config, mesh))
    pool = init_pool(model, CACHE, mesh)
    chunks = [Chunk(sequence, 0, sequence.num_tokens, 1) for sequence in make_sequences(TEXTS)]
    batch = pack(chunks, BatchShape(24, 2, 8, 2), BLOCK_SIZE)
    arguments = (params, pool, batch, np.zeros(2, np.int32))
    function = partial(backbone, config=model)
    jitted = jit_on(mesh, function, arguments, outs=(REPLICATED, POOL), donate=(1,))
    program, num_bytes = jitted.lower(*arguments).compile(), device_bytes_of(pool)
    out, _ = program(*arguments)
    return np.asarray(out.hidden)[: sum(map(len, TEXTS))], program, num_bytes


@pytest.fixture(scope="module", params=CASES)
def case(request):
    config, tensor = CASES[request.param]
    return config, run(config, tensor)


def test_hidden_states_are_those_of_one_device(case) -> None:
    config, (hidden, _, _) = case

    alone, _, _ = run(config, 1)

    np.testing.assert_allclose(hidden, alone, atol=2e-5)


def test_devices_sum_twice_a_layer_and_once_for_the_embedding(case) -> None:
    config, (_, program, _) = case

    found = COLLECTIVE.findall(program.as_text())

    assert found == ["all-reduce"] * (2 * config.num_layers + 1)


def test_each_device_updates_its_part_of_the_pool_in_place(case) -> None:
    _, (_, program, pool_bytes) = case

    assert program.memory_analysis().alias_size_in_bytes == pool_bytes


def test_each_device_holds_its_part_of_the_matrices_only() -> None:
    mesh = make_mesh(MeshShape(tensor=4))
    whole = dummy_params(QWEN3, 0)
    parts = dummy_params(QWEN3, 0, WeightLayout(QWEN3, mesh))

    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        assert device_bytes_of(other) == one.nbytes // (4 if one.ndim == 2 else 1)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_one_device_has_no_mesh() -> None:
    assert make_mesh(MeshShape()) is None
    _, program, _ = run(LLAMA, 1)
    assert COLLECTIVE.findall(program.as_text()) == []


def test_stages_exchange_no_more_than_their_layers_do() -> None:
    shape = MeshShape(stage=2, tensor=2)
    mesh, model = make_mesh(shape), divided(LLAMA, 2)
    params = with_own_head(
        dummy_params(LLAMA, 0, WeightLayout(LLAMA, mesh)), WeightLayout(LLAMA, mesh)
    )
    programs = StagedPrograms(EngineConfig(model, CACHE, SchedulerConfig(2, 8, 32), mesh=shape))
    pool = init_pool(model, CACHE, mesh)

    stages = [programs.lower_stage(params, pool, 8, index).compile() for index in range(2)]

    found = [COLLECTIVE.findall(stage.as_text()) for stage in stages]
    assert found == [["all-reduce"] * 3, ["all-reduce"] * 2]  # the embedding's is the first
    donated = [stage.memory_analysis().alias_size_in_bytes for stage in stages]
    assert donated == [device_bytes_of(pool)] * 2
