"""From options to a ready engine: find the model, read it, plan the memory, compile."""

import atexit
import logging
from dataclasses import dataclass, replace
from functools import partial

import jax

from paged_jax.batch_invariance import check_batch_invariance
from paged_jax.cluster import handshake
from paged_jax.cluster.leader import Leader, gather
from paged_jax.cluster.leading_engine import LeadingEngine
from paged_jax.cluster.start import listen, start_distributed
from paged_jax.compile_counter import use_compilation_cache
from paged_jax.config import (
    AttentionMods,
    EngineConfig,
    MeshShape,
    ModelConfig,
    OptionError,
    cache_folder,
)
from paged_jax.device.attention_mods import check_mods
from paged_jax.device.draw_extras import LogitsProcessor
from paged_jax.device.kv_pool import block_bytes, pool_struct
from paged_jax.device.sharding import copied_to_replica, device_bytes_of, make_mesh
from paged_jax.engine import Engine
from paged_jax.engine_args import EngineArgs
from paged_jax.memory import MemoryLedger, check_model_len, device_bytes, plan_memory
from paged_jax.models.layout import WeightLayout, divided, with_own_head
from paged_jax.models.params import ModelParams
from paged_jax.phases import PhaseClock
from paged_jax.pipelined_engine import PipelinedEngine
from paged_jax.resolved import (
    check_hosts,
    check_stages,
    engine_config,
    mesh_shape,
    scheduler_config,
    with_blocks,
)
from paged_jax.staged_programs import make_programs
from paged_jax.text.tokenizer import Tokenizer
from paged_jax.weights.load import default_sampling, load_params, read_config
from paged_jax.weights.source import ModelSource, resolve_model

logger = logging.getLogger("paged_jax")

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def build_engine(args: EngineArgs, *, clock: PhaseClock | None = None) -> Engine:
    """Load the model, size the KV pool, compile every program of one engine.

    Raises:
        OptionError: as `build_engines`, or there are to be several replicas.
    """
    if args.data_parallel_size > 1:
        raise OptionError(
            f"--data-parallel-size {args.data_parallel_size} is for the server, run_batch and LLM: "
            "leave it out here, where one engine runs"
        )
    return build_engines(args, clock=clock)[0]


def build_engines(
    args: EngineArgs,
    *,
    clock: PhaseClock | None = None,
    logits_processor: LogitsProcessor | None = None,
    mods: AttentionMods | None = None,
) -> list[Engine]:
    """Load the model once, size the KV pools, compile the programs of every replica.

    Args:
        clock: started when the program was; None starts now.
        logits_processor: compiled into every draw; see `DrawExtras`.
        mods: compiled into every layer.
    Raises:
        OptionError: a setting is out of range or does not fit this model or machine.
        ModelError: the model cannot be found or read.
        OSError: another host is missing, or runs something else.
    """
    clock = clock or PhaseClock()
    check_hosts(args, has_processor=logits_processor is not None)
    parts = prepare(args, clock=clock, logits_processor=logits_processor, mods=mods)
    config, ledger, leader = parts.config, parts.ledger, None
    if args.nnodes > 1:
        leader, num_blocks = _gather(args, parts)
        config, ledger = with_blocks(config, num_blocks), ledger.with_blocks(num_blocks)
        check_model_len(args, ledger, config.scheduler.max_model_len)
    if leader is None:
        engines = _start_replicas(parts, logits_processor)
    else:
        engines = [_start_leading(parts, config, leader)]
    clock.end("compile")
    ledger = ledger.with_programs(engines[0].programs.peak_bytes())
    jax.block_until_ready([engine.pool for engine in engines])
    clock.end("ready")
    for engine in engines:
        engine.startup = clock.seconds
    logger.info("%s", ledger.describe(config.scheduler.max_model_len))
    logger.info("Start-up:\n%s", clock.table())
    return engines


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


def _gather(args: EngineArgs, parts: Parts) -> tuple[Leader, int]:
    """Wait for the other hosts; return how to lead them, and how many blocks all can hold."""
    secret = handshake.read_secret(args)
    digests = handshake.digests_of(parts.config, parts.params)
    own = handshake.Hello(0, parts.ledger.num_blocks, digests)
    with listen(args) as listener:
        leader, num_blocks = gather(listener, secret, own, num_ranks=args.nnodes)
    atexit.register(leader.close)  # before jax.distributed, which waits for the others
    return leader, num_blocks


def _start_leading(parts: Parts, config: EngineConfig, leader: Leader) -> Engine:
    """Compile the programs of an engine on several hosts, when these do so too."""
    sampling = default_sampling(parts.source)
    return LeadingEngine(leader, config, parts.params, parts.tokenizer, default_sampling=sampling)


def _start_replicas(parts: Parts, logits_processor: LogitsProcessor | None) -> list[Engine]:
    """Compile the programs of every replica."""
    start = partial(
        PipelinedEngine if parts.config.mesh.stage > 1 else Engine,
        tokenizer=parts.tokenizer,
        default_sampling=default_sampling(parts.source),
        logits_processor=logits_processor,
    )
    params = parts.params
    return [
        start(each, params if i == 0 else copied_to_replica(params, each.mesh))
        for i, each in enumerate(_replicas(parts.config))
    ]


def _replicas(config: EngineConfig) -> list[EngineConfig]:
    """Return the configuration of each replica."""
    shapes = (replace(config.mesh, replica=index) for index in range(config.mesh.data))
    return [replace(config, mesh=shape) for shape in shapes]


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
