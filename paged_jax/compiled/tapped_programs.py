"""The compiled programs of an engine that offers taps: each backbone twice, with taps and without.

The host chooses by the step: without a request that has taps, a step runs the program it would run
in an engine that offers none.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from paged_jax.compiled.programs import Drawn, Lower, ProgramKey, Programs, own_bytes
from paged_jax.compiled.step import BackboneOutput
from paged_jax.device.kv_pool import KVPool
from paged_jax.device.sharding import POOL, REPLICATED
from paged_jax.device.step_batch import StepBatch, empty_batch
from paged_jax.device.taps import empty_taps
from paged_jax.models.params import ModelParams

TAPPED = "tapped backbone"


class TappedPrograms(Programs):
    """The programs of one engine on one device."""

    def backbone_jobs(
        self, params: ModelParams, pool: KVPool
    ) -> Iterator[tuple[ProgramKey, Lower]]:
        """Each backbone's key, and what traces it, largest first."""
        yield from super().backbone_jobs(params, pool)
        for tokens in reversed(self.token_buckets):
            yield (TAPPED, tokens), partial(self.lower_tapped, params, pool, tokens)

    def lower_tapped(self, params: ModelParams, pool: KVPool, tokens: int) -> Any:
        """Trace the backbone with taps for a token bucket; `pool` may be abstract."""
        model = self.config.model
        taps = empty_taps(tokens, model.num_layers, model.embed_dim)
        batch = replace(empty_batch(self.batch_shape(tokens)), taps=taps)
        arguments = (params, pool, batch, self.nothing_drawn())
        return self._lower(self._backbone, arguments, outs=(REPLICATED, POOL), donate=(1,))

    def run_backbone(
        self, params: ModelParams, pool: KVPool, batch: StepBatch, drawn: Drawn
    ) -> tuple[BackboneOutput, KVPool]:
        """Run the layers, with taps if the batch has any. Donate: pool."""
        if batch.taps is None:
            return super().run_backbone(params, pool, batch, drawn)
        size = batch.tokens.shape[0]
        return self.call(TAPPED, size, self._backbone, params, pool, batch, drawn)

    def measure(self, params: ModelParams, pool: KVPool) -> int:
        """Compile the largest backbone with taps; return the bytes it needs itself."""
        return own_bytes(self.lower_tapped(params, pool, self.token_buckets[-1]).compile())
