"""From options to a ready engine: its parts, the other hosts if there are any, and the programs."""

import atexit
import logging
from dataclasses import replace
from functools import partial

import jax

from paged_jax.cluster import handshake
from paged_jax.cluster.leader import Leader, gather
from paged_jax.cluster.leading_engine import LeadingEngine
from paged_jax.cluster.listening import listen
from paged_jax.config import AttentionMods, EngineConfig, OptionError
from paged_jax.device.draw_extras import LogitsProcessor
from paged_jax.device.sharding import copied_to_replica
from paged_jax.engine.engine import Engine
from paged_jax.engine.memory import check_model_len
from paged_jax.engine.pipelined_engine import PipelinedEngine
from paged_jax.engine.preparation import Parts, prepare
from paged_jax.engine.resolved import check_hosts, with_blocks
from paged_jax.engine_args import EngineArgs
from paged_jax.phases import PhaseClock
from paged_jax.weights.load import default_sampling

logger = logging.getLogger("paged_jax")


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
    ledger = ledger.with_programs(engines[0].executor.programs.peak_bytes())
    jax.block_until_ready([engine.executor.pool for engine in engines])
    clock.end("ready")
    for engine in engines:
        engine.startup = clock.seconds
    logger.info("%s", ledger.describe(config.scheduler.max_model_len))
    logger.info("Start-up:\n%s", clock.table())
    return engines


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
