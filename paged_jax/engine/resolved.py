"""From what a user asks to what runs: each setting resolved, and what contradicts refused."""

from dataclasses import replace

from paged_jax.config import (
    CacheConfig,
    EngineConfig,
    MeshShape,
    ModelConfig,
    OptionError,
    SchedulerConfig,
)
from paged_jax.engine_args import EngineArgs
from paged_jax.host.policies import make_policy

DEFAULT_MAX_SEQS = 64


def check_hosts(args: EngineArgs, *, has_processor: bool) -> None:
    """Raise OptionError if several hosts cannot do what is asked of them."""
    if args.node_rank > 0:
        raise OptionError(
            f"--node-rank {args.node_rank} is started by python -m paged_jax.serve alone: whatever "
            "rank 0 runs, the others follow"
        )
    if args.nnodes > 1 and has_processor:
        raise OptionError(
            f"logits_processor works on one host, not on {args.nnodes}: leave it or --nnodes out"
        )


def mesh_shape(args: EngineArgs) -> MeshShape:
    """Return the devices asked for.

    Raises:
        OptionError: an option works on one device only.
    """
    shape = MeshShape(
        args.data_parallel_size, args.pipeline_parallel_size, args.tensor_parallel_size
    )
    if args.record is not None and args.enable_taps:
        raise OptionError("--record writes down no taps: leave it out, or --enable-taps")
    if args.record is not None and shape.data * shape.stage > 1:
        raise OptionError(
            "--record writes down one engine with one step in flight: leave it out, or "
            "--pipeline-parallel-size and --data-parallel-size"
        )
    if args.nnodes > 1 and shape.data * shape.stage > 1:
        raise OptionError(
            f"--nnodes {args.nnodes} divides layers by --tensor-parallel-size alone: leave out "
            "--pipeline-parallel-size and --data-parallel-size"
        )
    for flag, is_on in (("enforce-eager", args.enforce_eager), ("enable-taps", args.enable_taps)):
        if is_on and shape.num_devices > 1:
            raise OptionError(
                f"--{flag} runs on one device, not on {shape.num_devices}: leave it out, or the "
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


def engine_config(
    args: EngineArgs, model: ModelConfig, limits: SchedulerConfig, name: str
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
        model_name=args.model or name,
        seed=args.seed,
        max_logprobs=min(args.max_logprobs, model.vocab_size),
        logprobs_mode=args.logprobs_mode,
        enforce_eager=args.enforce_eager,
        async_scheduling=args.async_scheduling,
        mesh=mesh_shape(args),
        record=args.record,
        batch_invariant=args.batch_invariant,
        has_taps=args.enable_taps,
    )


def with_blocks(config: EngineConfig, num_blocks: int) -> EngineConfig:
    """Return the configuration with so many KV blocks."""
    return replace(config, cache=replace(config.cache, num_blocks=num_blocks))
