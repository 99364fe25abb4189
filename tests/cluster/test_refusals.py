"""What several hosts cannot do is refused before anything is loaded or awaited."""

import pytest

from paged_jax import LLM
from paged_jax.cluster.leading_engine import LeadingEngine
from paged_jax.config import OptionError
from paged_jax.distributed import start_distributed
from paged_jax.engine_args import EngineArgs
from paged_jax.host.saved import SnapshotError


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pipeline_parallel_size": 2}, "by --tensor-parallel-size alone"),
        ({"data_parallel_size": 2}, "by --tensor-parallel-size alone"),
        ({"logits_processor": lambda logits, ids: logits}, "logits_processor works on one host"),
        ({"node_rank": 1}, "--node-rank 1 is started by python -m paged_jax.serve alone"),
        ({"tensor_parallel_size": 2, "enforce_eager": True}, "--enforce-eager runs on one device"),
    ],
)
def test_an_option_is_refused_with_the_reason(options, reason) -> None:
    with pytest.raises(OptionError, match=reason):
        LLM("no model", nnodes=2, **options)


def test_a_rank_beyond_the_last_is_refused() -> None:
    with pytest.raises(OptionError, match="--node-rank 2 must be below --nnodes 2"):
        start_distributed(EngineArgs(nnodes=2, node_rank=2))


@pytest.mark.parametrize("name", ["snapshot", "restore"])
def test_a_snapshot_needs_one_host(name) -> None:
    engine = LeadingEngine.__new__(LeadingEngine)
    with pytest.raises(SnapshotError, match="--nnodes 1"):
        getattr(engine, name)("anywhere")
