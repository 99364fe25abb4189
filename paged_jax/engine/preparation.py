"""What engines are made of, on one host: the model found and read, its memory planned."""

import logging
from dataclasses import dataclass, replace

import jax

from paged_jax.compiled.batch_invariance import check_batch_invariance
from paged_jax.compiled.compile_counter import use_compilation_cache
from paged_jax.compiled.staged_programs import make_programs
from paged_jax.config import (
    AttentionMods,
    EngineConfig,
    MeshShape,
    ModelConfig,
    cache_folder,
)
from paged_jax.device.attention_mods import check_mods
from paged_jax.device.draw_extras import LogitsProcessor
from paged_jax.device.kv_pool import block_bytes, pool_struct
from paged_jax.device.sharding import device_bytes_of, make_mesh
from paged_jax.distributed import start_distributed
from paged_jax.engine.memory import MemoryLedger, check_model_len, device_bytes, plan_memory
from paged_jax.engine.resolved import (
    check_stages,
    engine_config,
    mesh_shape,
    scheduler_config,
    with_blocks,
)
from paged_jax.engine_args import EngineArgs
from paged_jax.models.layout import WeightLayout, divided, with_own_head
from paged_jax.models.params import ModelParams
from paged_jax.phases import PhaseClock
from paged_jax.text.tokenizer import Tokenizer
from paged_jax.weights.load import load_params, read_config
from paged_jax.weights.source import ModelSource, resolve_model

logger = logging.getLogger("paged_jax")

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class Parts:
    """What engines are made of, on one host."""

    source: ModelSource
    config: EngineConfig
    params: ModelParams
    tokenizer: Tokenizer
    ledger: MemoryLedger


def prepare(
    args: EngineArgs,
    *,
    clock: PhaseClock | None = None,
    logits_processor: LogitsProcessor | None = None,
    mods: AttentionMods | None = None,
) -> Parts:
    """Load the model and size the KV pool; raise as `build_engines`."""
    clock = clock or PhaseClock()
    args.validate()
    shape = mesh_shape(args)
    use_compilation_cache(cache_folder() / "xla")
    clock.end("import")
    if args.nnodes > 1:
        start_distributed(args)
        clock.end("find hosts")
    source = resolve_model(args.model)
    model = read_config(
        source,
        dtype=args.dtype,
        quantization=args.quantization,
        is_divided=shape.num_devices > 1,
    )
    if args.batch_invariant:
        check_batch_invariance(args, model, shape, logits_processor)
    limits = scheduler_config(args, model)
    tokenizer = load_tokenizer(source, may_lack=args.load_format == "dummy")
    mods = check_mods(mods, args, model)
    model = replace(model, vocab_limit=min(model.vocab_size, tokenizer.size), mods=mods)
    limits = replace(limits, first_chunk=mods.bidirectional if mods else 1)
    on_devices = divided(model, shape.tensor)
    check_stages(model, shape.stage)
    clock.end("read config")
    params = _load(args, source, model, shape)
    clock.end("load weights")
    config = engine_config(args, on_devices, limits, source.name)
    ledger = size_pool(args, config, params)
    return Parts(source, with_blocks(config, ledger.num_blocks), params, tokenizer, ledger)


def _load(
    args: EngineArgs, source: ModelSource, model: ModelConfig, shape: MeshShape
) -> ModelParams:
    mesh = make_mesh(shape)
    params = load_params(source, model, load_format=args.load_format, seed=args.seed, mesh=mesh)
    if shape.stage > 1:
        params = with_own_head(params, WeightLayout(model, mesh))
    jax.block_until_ready(params)
    logger.info(
        "Loaded %s (%s, %s) on %d x %s",
        source.name, model.family, model.dtype, shape.num_devices,
        jax.local_devices()[0].device_kind,
    )  # fmt: skip
    return params


def load_tokenizer(source: ModelSource, *, may_lack: bool) -> Tokenizer:
    """Read the tokenizer beside the weights or inside them; bytes where it may and does lack."""
    if source.kind == "gguf":
        return Tokenizer.from_gguf(source.path)
    if may_lack and not any((source.path / name).exists() for name in TOKENIZER_FILES):
        return Tokenizer.of_bytes()
    return Tokenizer.from_folder(source.path)


def size_pool(args: EngineArgs, config: EngineConfig, params: ModelParams) -> MemoryLedger:
    """Decide the number of KV blocks from measured sizes, those of one device.

    Where the device has a limit, the largest program is compiled first, for a pool of two blocks:
    the temporary memory of a step does not depend on the size of the pool.

    Raises:
        OptionError: the model length does not fit; states the largest that does.
    """
    programs_bytes = 0
    if device_bytes() is not None and not config.enforce_eager:
        programs = make_programs(config)
        pool = pool_struct(config.model, config.cache, programs.mesh)
        programs_bytes = programs.measure(params, pool)
    layers = -(-config.model.num_layers // config.mesh.stage)
    fullest = replace(config.model, num_layers=layers)
    ledger = plan_memory(
        args,
        weights_bytes=device_bytes_of(params),
        programs_bytes=programs_bytes,
        block_bytes=block_bytes(fullest, config.cache) // config.mesh.tensor,
    )
    check_model_len(args, ledger, config.scheduler.max_model_len)
    return ledger
