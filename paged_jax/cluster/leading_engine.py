"""The engine of several hosts, on rank 0: every call of a program is made by all of them."""

from pathlib import Path

import jax

from paged_jax.cluster.leader import Leader
from paged_jax.config import EngineConfig
from paged_jax.engine.engine import Engine
from paged_jax.host.saved import SnapshotError
from paged_jax.models.params import ModelParams
from paged_jax.outputs import RequestDelta
from paged_jax.text.tokenizer import Tokenizer


class LeadingEngine(Engine):
    """An Engine whose programs run on the devices of several hosts.

    Attributes:
        leader: of the other hosts.
    """

    def __init__(
        self,
        leader: Leader,
        config: EngineConfig,
        params: ModelParams,
        tokenizer: Tokenizer,
        *,
        default_sampling: dict[str, object] | None = None,
    ):
        super().__init__(config, params, tokenizer, default_sampling=default_sampling)
        self.leader = leader
        leader.lead(self.executor.programs)

    def step(self) -> list[RequestDelta]:
        """Do as an Engine; a step that fails, or that a lost host makes fail, ends every host."""
        try:
            return super().step()
        except Exception as error:
            cause = str(error).partition("\n")[0]
            self.leader.note_failed_step(f"{type(error).__name__}: {cause}")
            raise

    def snapshot(self, path: str | Path) -> None:
        """Refuse: no host sees the whole pool."""
        raise SnapshotError("a snapshot needs --nnodes 1")

    def restore(self, path: str | Path) -> list[RequestDelta]:
        """Refuse: no host can fill the whole pool."""
        raise SnapshotError("restoring a snapshot needs --nnodes 1")

    def close(self) -> None:
        """Free this host's memory, and let the others end."""
        super().close()
        if self.leader.close():
            jax.distributed.shutdown()  # they wait for it
