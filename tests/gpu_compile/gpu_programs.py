"""What the compile check looks at: kernels at the shapes of real models, and whole steps."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from paged_jax.bench.gpu_compile import Program, gpu_mesh
from paged_jax.bench.models import LLAMA_3_1_8B
from paged_jax.compiled.staged_step import stage_backbone, stage_params
from paged_jax.compiled.step import StepInput, backbone, draw, engine_step
from paged_jax.config import CacheConfig
from paged_jax.device.kv_pool import pool_struct
from paged_jax.device.sampling_rows import RowShape, pack_rows
from paged_jax.device.sharding import POOL, REPLICATED, RULES, TENSOR
from paged_jax.device.step_batch import BatchShape, empty_batch
from paged_jax.models.layout import AXES
from paged_jax.models.params import abstract_params

WATCHED = ("paged_", "quant_matmul")
BATCH, MAX_BLOCKS = 32, 256
CACHE = CacheConfig(num_blocks=4096, block_size=16)
ROWS = RowShape(rows=BATCH, context=4096, biases=16)


def attention_program(
    function,
    *,
    name: str,
    tokens: int,
    head_dim: int = 128,
    q_heads: int = 32,
    pool_dtype: str = "bfloat16",
    max_blocks: int = MAX_BLOCKS,
    **rule,
) -> Program:
    """8 KV heads, 32 sequences of up to 4,096 tokens in blocks of 16."""
    shape = (CACHE.num_blocks, CACHE.block_size, 8, head_dim)
    pool = jax.ShapeDtypeStruct(shape, pool_dtype)
    ints = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)  # noqa: E731
    arguments = (
        jax.ShapeDtypeStruct((tokens, q_heads, head_dim), jnp.bfloat16),
        pool,
        pool,
        ints(BATCH, max_blocks),
        ints(BATCH + 1),
        ints(BATCH),
    )
    attend = partial(function, scale=head_dim**-0.5, **rule)
    if pool.dtype.itemsize > 1:
        return Program(name, attend, arguments, watched=WATCHED)
    scales = (jax.ShapeDtypeStruct(shape[:3], jnp.float32),) * 2
    scaled = lambda *arrays: attend(*arrays[:-2], k_scales=arrays[-2], v_scales=arrays[-1])  # noqa: E731
    return Program(name, scaled, (*arguments, *scales), watched=WATCHED)


def quant_program(function, *, rows: int, bits: int) -> Program:
    """A 4,096 x 14,336 product; int8 with a scale a column, int4 with one for 128 inputs."""
    inner, outer = 4096, 14336
    groups = 1 if bits == 8 else inner // 128
    arguments = (
        jax.ShapeDtypeStruct((rows, inner), jnp.bfloat16),
        jax.ShapeDtypeStruct((inner * bits // 8, outer), jnp.int8),
        jax.ShapeDtypeStruct((groups, outer), jnp.bfloat16),
    )
    name = f"int{bits}, {rows} rows"
    return Program(name, partial(function, bits=bits), arguments, watched=WATCHED)


def step_program(
    num_layers: int, *, tokens: int = BATCH, kv_dtype: str = "auto"
) -> tuple[Program, int]:
    """A step of Llama-3.1-8B's shape, by default a decode step; also the bytes of its pool."""
    config = replace(LLAMA_3_1_8B, num_layers=num_layers)
    with gpu_mesh():
        pool = pool_struct(config, replace(CACHE, dtype=kv_dtype))
    batch = empty_batch(BatchShape(tokens, BATCH, MAX_BLOCKS, BATCH))
    drawn = jax.ShapeDtypeStruct((BATCH,), jnp.int32)
    arguments = (abstract_params(config), pool, batch, drawn)
    name = f"step of {tokens} tokens, {num_layers} layers, KV {kv_dtype}"
    run = partial(backbone, config=config)
    num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pool))
    return Program(name, run, arguments, donate=(1,), watched=WATCHED), num_bytes


def engine_program() -> Program:
    """A whole decode step of two layers, drawing included: every row takes its likeliest id."""
    program, _ = step_program(2)
    params, pool, batch, _ = program.arguments
    inputs = StepInput(batch=batch, rows=pack_rows([], ROWS))
    run = partial(engine_step, config=replace(LLAMA_3_1_8B, num_layers=2))
    return replace(
        program, name="whole step, greedy", function=run, arguments=(params, pool, inputs)
    )


def draw_program() -> Program:
    """The program that draws for every mix; from few ids, as sorting is slow to compile."""
    config = replace(LLAMA_3_1_8B, num_layers=1, vocab_size=4096)
    rows = pack_rows([], ROWS).replace(is_plain=False)
    sampled = jax.ShapeDtypeStruct((BATCH, config.embed_dim), jnp.bfloat16)
    run = partial(draw, config=config, max_logprobs=20)
    return Program("draw, every mix", run, (abstract_params(config), sampled, rows))


def divided_step(num_layers: int, num_devices: int = 4) -> tuple[Program, int]:
    """A decode step over several GPUs; also the bytes of each one's part of the pool."""
    program, pool_bytes = step_program(num_layers)
    divided = replace(
        program,
        name=f"{program.name}, {num_devices} GPUs",
        specs=(param_specs(program.arguments[0]), POOL, REPLICATED, REPLICATED),
        outs=(REPLICATED, POOL),
        num_devices=num_devices,
    )
    return divided, pool_bytes // num_devices


def divided_stage(num_layers: int, *, num_devices: int = 4) -> tuple[Program, int]:
    """The second of two stages of a decode step, over several GPUs; also the bytes of each one's
    part of its pool.
    """
    program, pool_bytes = step_program(num_layers)
    params, pool, batch, _ = program.arguments
    config = replace(LLAMA_3_1_8B, num_layers=num_layers)
    layers = range(num_layers // 2, num_layers)
    mine = stage_params(params, layers, config)
    given = jax.ShapeDtypeStruct((BATCH, config.embed_dim), jnp.bfloat16)
    stage = replace(
        program,
        name=f"second stage of {num_layers} layers, {num_devices} GPUs",
        function=partial(stage_backbone, config=config, layers=layers),
        arguments=(mine, pool.part(layers), batch, given),
        specs=(param_specs(mine), POOL, REPLICATED, REPLICATED),
        outs=(REPLICATED, POOL),
        num_devices=num_devices,
    )
    return stage, pool_bytes // 2 // num_devices


def divided_draw(*, is_plain: bool) -> Program:
    """Drawing over 4 GPUs: of rows that take their likeliest id, or of every mix."""
    program = draw_program()
    params, sampled, rows = program.arguments
    return replace(
        program,
        name=f"draw, {'greedy' if is_plain else 'every mix'}, 4 GPUs",
        arguments=(params, sampled, rows.replace(is_plain=is_plain)),
        specs=(param_specs(params), REPLICATED, REPLICATED),
        outs=REPLICATED,
        num_devices=4,
    )


def param_specs(params):
    return jax.tree_util.tree_map_with_path(
        lambda path, _: RULES.spec(*AXES[path[-1].name]), params
    )


def divided_mlp() -> Program:
    """A gated MLP over 4 GPUs, each with a part of the inner dimension."""
    config = replace(LLAMA_3_1_8B, num_layers=1)
    layer = abstract_params(config).layers[0]
    x = jax.ShapeDtypeStruct((BATCH, config.embed_dim), jnp.bfloat16)
    run = lambda x, gate, up, down: (jax.nn.silu(x @ gate) * (x @ up)) @ down  # noqa: E731
    arguments = (x, layer.w_gate, layer.w_up, layer.w_down)
    specs = (P(), P(None, TENSOR), P(None, TENSOR), P(TENSOR, None))
    return Program("MLP over 4 GPUs", run, arguments, specs=specs, num_devices=4)
