"""Joins the processes of several hosts by JAX's own coordination."""

import atexit

import jax

from paged_jax.config import OptionError
from paged_jax.engine_args import EngineArgs

LOST_S = 100  # after which JAX itself ends a process; the ranks watch each other sooner


def start_distributed(args: EngineArgs) -> None:
    """Make one set of devices out of those of all hosts. Nothing of JAX may have been used.

    Raises:
        OptionError: the options contradict.
        OSError: the others are not there in time.
    """
    if args.node_rank >= args.nnodes:
        raise OptionError(
            f"--node-rank {args.node_rank} must be below --nnodes {args.nnodes}: ranks begin at 0"
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    where = f"{args.master_addr}:{args.master_port}"
    try:
        jax.distributed.initialize(
            where,
            num_processes=args.nnodes,
            process_id=args.node_rank,
            coordinator_bind_address=where if args.node_rank == 0 else None,
            heartbeat_timeout_seconds=LOST_S,
            shutdown_timeout_seconds=LOST_S,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise OSError(
            f"the {args.nnodes} hosts did not find each other at {where}: {reason}"
        ) from error
    atexit.register(jax.distributed.shutdown)
    if args.tensor_parallel_size != jax.device_count():
        raise OptionError(
            f"--tensor-parallel-size {args.tensor_parallel_size} must be all {jax.device_count()} "
            f"devices of the {args.nnodes} hosts: choose that, or show JAX fewer devices"
        )
