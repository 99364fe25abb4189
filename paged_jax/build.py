"""From options to a ready engine: find the model, read it, plan the memory, compile."""

import logging
from dataclasses import replace
from functools import partial

import jax

from paged_jax.batch_invariance import check_batch_invariance
from paged_jax.compile_counter import use_compilation_cache
from paged_jax.config import (
    CacheConfig,
    EngineConfig,
    MeshShape,
    ModelConfig,
    OptionError,
    SchedulerConfig,
    cache_folder,
)
from paged_jax.device.draw_extras import LogitsProcessor
from paged_jax.device.kv_pool import block_bytes, pool_struct
from paged_jax.device.sharding import copied_to_replica, device_bytes_of, make_mesh
from paged_jax.engine import Engine
from paged_jax.engine_args import EngineArgs
from paged_jax.host.policies import make_policy
from paged_jax.memory import MemoryLedger, check_model_len, device_bytes, plan_memory
from paged_jax.models.layout import WeightLayout, divided, with_own_head
from paged_jax.models.params import ModelParams
from paged_jax.phases import PhaseClock
from paged_jax.pipelined_engine import PipelinedEngine
from paged_jax.staged_programs import make_programs
from paged_jax.text.tokenizer import Tokenizer
from paged_jax.weights.load import default_sampling, load_params, read_config
from paged_jax.weights.source import ModelSource, resolve_model

logger = logging.getLogger("paged_jax")

DEFAULT_MAX_SEQS = 64
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
) -> list[Engine]:
    """Load the model once, size the KV pools, compile the programs of every replica.

    Args:
        clock: started when the program was; None starts now.
        logits_processor: compiled into every draw; see `DrawExtras`.
    Raises:
        OptionError: a setting is out of range or does not fit this model or machine.
        ModelError: the model cannot be found or read.
    """
    clock = clock or PhaseClock()
    args.validate()
    use_compilation_cache(cache_folder() / "xla")
    clock.end("import")
    source = resolve_model(args.model)
    shape = mesh_shape(args)
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
    model = replace(model, vocab_limit=min(model.vocab_size, tokenizer.size))
    on_devices = divided(model, shape.tensor)
    check_stages(model, shape.stage)
    clock.end("read config")
    params = _load(args, source, model, shape)
    clock.end("load weights")
    config = engine_config(args, on_devices, limits, source)
    ledger = size_pool(args, config, params)
    config = replace(config, cache=replace(config.cache, num_blocks=ledger.num_blocks))
    kind = PipelinedEngine if shape.stage > 1 else Engine
    start = partial(
        kind,
        tokenizer=tokenizer,
        default_sampling=default_sampling(source),
        logits_processor=logits_processor,
    )
    engines = [
        start(each, params if i == 0 else copied_to_replica(params, each.mesh))
        for i, each in enumerate(_replicas(config))
    ]
    clock.end("compile")
    ledger = ledger.with_programs(engines[0].programs.peak_bytes())
    jax.block_until_ready([engine.pool for engine in engines])
    clock.end("ready")
    for engine in engines:
        engine.startup = clock.seconds
    logger.info("%s", ledger.describe(limits.max_model_len))
    logger.info("Start-up:\n%s", clock.table())
    return engines


def _replicas(config: EngineConfig) -> list[EngineConfig]:
    """Return the configuration of each replica."""
    shapes = (replace(config.mesh, replica=index) for index in range(config.mesh.data))
    return [replace(config, mesh=shape) for shape in shapes]


def engine_config(
    args: EngineArgs, model: ModelConfig, limits: SchedulerConfig, source: ModelSource
) -> EngineConfig:
    """Return what runs, but for the number of blocks, which `size_pool` decides."""
    return EngineConfig(
        model=model,
        cache=CacheConfig(
            num_blocks=2,
            block_size=args.block_size,
            prefix_caching=args.enable_prefix_caching,
            dtype=args.kv_cache_dtype,
            partial_reuse=args.enable_partial_prefix_caching,
        ),
        scheduler=limits,
        model_name=args.model or source.name,
        seed=args.seed,
        max_logprobs=min(args.max_logprobs, model.vocab_size),
        logprobs_mode=args.logprobs_mode,
        enforce_eager=args.enforce_eager,
        async_scheduling=args.async_scheduling,
        mesh=mesh_shape(args),
        record=args.record,
        batch_invariant=args.batch_invariant,
    )


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


def mesh_shape(args: EngineArgs) -> MeshShape:
    """Return the devices asked for.

    Raises:
        OptionError: an option works on one device only.
    """
    shape = MeshShape(
        args.data_parallel_size, args.pipeline_parallel_size, args.tensor_parallel_size
    )
    if args.record is not None and shape.data * shape.stage > 1:
        raise OptionError(
            "--record writes down one engine with one step in flight: leave it out, or "
            "--pipeline-parallel-size and --data-parallel-size"
        )
    if args.enforce_eager and shape.num_devices > 1:
        raise OptionError(
            f"--enforce-eager runs on one device, not on {shape.num_devices}: leave it out, or the "
            "--...-parallel-size options"
        )
    return shape


def check_stages(model: ModelConfig, num_stages: int) -> None:
    """Raise OptionError if a stage would have no layer."""
    if num_stages > model.num_layers:
        raise OptionError(
            f"--pipeline-parallel-size {num_stages} exceeds the model's {model.num_layers} layers: "
            f"choose at most {model.num_layers}"
        )


def load_tokenizer(source: ModelSource, *, may_lack: bool) -> Tokenizer:
    """Read the tokenizer beside the weights or inside them; bytes where it may and does lack."""
    if source.kind == "gguf":
        return Tokenizer.from_gguf(source.path)
    if may_lack and not any((source.path / name).exists() for name in TOKENIZER_FILES):
        return Tokenizer.of_bytes()
    return Tokenizer.from_folder(source.path)


def scheduler_config(args: EngineArgs, model: ModelConfig) -> SchedulerConfig:
    """Resolve the limits of a step and of a sequence against the model's own.

    Raises:
        OptionError: `--max-model-len` exceeds what the model's positions cover, or the limits
            contradict.
    """
    limit = model.context_limit
    max_model_len = args.max_model_len or limit
    if max_model_len > limit:
        raise OptionError(
            f"--max-model-len {max_model_len} exceeds the model's {limit} positions: "
            f"choose at most {limit}"
        )
    budget = args.max_num_batched_tokens
    max_seqs = args.max_num_seqs or min(DEFAULT_MAX_SEQS, budget)
    if budget < max_seqs:
        raise OptionError(
            f"--max-num-batched-tokens {budget} must be at least --max-num-seqs ({max_seqs}): "
            "every running sequence needs one token a step"
        )
    make_policy(args.scheduling_policy)  # an unknown one is told before anything is loaded
    return SchedulerConfig(max_seqs, budget, max_model_len, args.scheduling_policy)


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
