"""How a model is laid over a mesh: which matrices are cut where, and what must divide evenly.

Megatron's scheme: the projections to heads and to the MLP's inner size are cut by columns, those
back to the stream by rows, so that each pair costs one all-reduce. Embedding and head are cut by
the vocabulary, which is padded. With fewer key/value heads than devices each head is repeated.
Source: Shoeybi et al. 2019, arXiv:1909.08053.
"""

import logging
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from paged_jax.config import ModelConfig, OptionError, Quantisation
from paged_jax.device.sharding import REPLICATED, RULES, TENSOR, Cuttable, put
from paged_jax.device.stages import Stage, cut_into_stages
from paged_jax.models import packed
from paged_jax.models.grown import Padded, RepeatedHeads
from paged_jax.models.params import ModelParams
from paged_jax.models.quantised import QuantisedMatrix
from pallas_kernels.quant_matmul import run_len

logger = logging.getLogger("paged_jax")

AXES: dict[str, tuple[str, ...]] = {
    "embed": ("vocab", "embed"),
    "unembed": ("embed", "vocab"),
    "final_norm": ("embed",),
    "attn_norm": ("embed",),
    "mlp_norm": ("embed",),
    "q_norm": ("head_dim",),
    "k_norm": ("head_dim",),
    "w_q": ("embed", "heads"),
    "w_k": ("embed", "kv_heads"),
    "w_v": ("embed", "kv_heads"),
    "w_o": ("heads", "embed"),
    "w_gate": ("embed", "mlp"),
    "w_up": ("embed", "mlp"),
    "w_down": ("mlp", "embed"),
    "b_q": ("heads",),
    "b_k": ("kv_heads",),
    "b_v": ("kv_heads",),
    "b_o": ("embed",),
    "b_gate": ("mlp",),
    "b_up": ("mlp",),
    "b_down": ("embed",),
}


def divided(config: ModelConfig, tensor: int) -> ModelConfig:
    """Return the model as `tensor` devices hold it: with at least one key/value head for each.

    Raises:
        OptionError: something cannot be cut evenly; names the sizes that can.
    """
    reason = _obstacle(config, tensor)
    if reason is not None:
        legal = [n for n in range(1, config.num_q_heads + 1) if _obstacle(config, n) is None]
        raise OptionError(
            f"--tensor-parallel-size {tensor} does not fit this model, as {reason}: "
            f"choose one of {', '.join(map(str, legal))}"
        )
    repeats = max(1, tensor // config.num_kv_heads)
    if repeats > 1:
        logger.warning(
            "Each of the %d key/value heads is on %d devices: the KV pool takes %d times the "
            "memory of its tokens",
            config.num_kv_heads, repeats, repeats,
        )  # fmt: skip
    return replace(config, num_kv_heads=repeats * config.num_kv_heads)


def _obstacle(config: ModelConfig, tensor: int) -> str | None:
    """Say what keeps the model from being divided; None if nothing does."""
    if tensor == 1:
        return None
    heads, kv_heads = config.num_q_heads, config.num_kv_heads
    if heads % tensor:
        return f"its {heads} query heads cannot be divided"
    if kv_heads % tensor and tensor % kv_heads:
        return f"its {kv_heads} key/value heads can be neither divided nor repeated"
    if config.mlp_dim % tensor:
        return f"its MLP of {config.mlp_dim} cannot be divided"
    if config.quantisation is None:
        return None
    inners = (heads * config.head_dim, config.mlp_dim)
    found = (_cut_group(config.quantisation, inner, tensor) for inner in inners)
    return next((reason for reason in found if reason), None)


def _cut_group(scheme: Quantisation, inner: int, tensor: int) -> str | None:
    """Say why a packed matrix cannot be cut by rows."""
    size, part = min(scheme.group_size or inner, inner), inner // tensor
    if scheme.needs_order:
        return "its packed matrices are in an order of their own (desc_act)"
    if size < inner and part % size:
        return f"groups of {size} among {inner} inputs would be cut"
    if size == inner and scheme.bits == 4 and run_len(part) != run_len(inner):
        return f"4-bit runs of {run_len(inner)} among {inner} inputs would be cut"
    return None


@dataclass(frozen=True)
class WeightLayout:
    """Where the weights of `config` (as the checkpoint has it) go."""

    config: ModelConfig
    mesh: Mesh | None = None

    def place(
        self, field: str, value: Cuttable | QuantisedMatrix, layer: int | None = None
    ) -> jax.Array | QuantisedMatrix | packed.PackedMatrix:
        """Place one field of ModelParams, or of a layer's LayerParams, made of host arrays.

        Args:
            value: without a mesh, in memory; with one, only what is placed on this host is read.
        """
        if self.mesh is None:
            assert isinstance(value, np.ndarray | QuantisedMatrix), "one device takes it all"
            return packed.place(field, value, self.config)
        assert not self.config.is_packed, "the CPU kernels' layout is for one device"
        mesh = self.stage_of(field, layer).mesh
        assert mesh is not None, "a stage without devices"
        if isinstance(value, QuantisedMatrix):
            return self._place_packed(field, value, mesh)
        return put(self._grown(field, value), mesh, RULES.spec(*AXES[field]))

    def stage_of(self, field: str, layer: int | None) -> Stage:
        """Return the stage that has a field: the first embeds, the last has norm and head."""
        stages = cut_into_stages(self.mesh, self.config.num_layers)
        if layer is None:
            return stages[0 if field == "embed" else -1]
        return next(stage for stage in stages if layer in stage.layers)

    def _place_packed(self, field: str, matrix: QuantisedMatrix, mesh: Mesh) -> QuantisedMatrix:
        """Cut values and scales alike; one scale for all inputs is needed on every device."""
        spec = RULES.spec(*AXES[field])
        if spec[0] is not None and matrix.order is not None:
            raise OptionError(
                f"--tensor-parallel-size must be 1 for this model, not {self._tensor}: its packed "
                f"{field} lists its inputs in an order of their own"
            )
        scales = PartitionSpec(spec[0] if matrix.scales.shape[0] > 1 else None, spec[1])

        def place(leaf: Any, spec: PartitionSpec) -> Any:
            return None if leaf is None else put(self._grown(field, leaf), mesh, spec)

        return QuantisedMatrix(
            values=place(matrix.values, spec),
            scales=place(matrix.scales, scales),
            zeros=place(matrix.zeros, scales),
            order=None if matrix.order is None else put(np.asarray(matrix.order), mesh, REPLICATED),
            bits=matrix.bits,
        )

    @property
    def _tensor(self) -> int:
        return 1 if self.mesh is None else self.mesh.shape[TENSOR]

    def _grown(self, field: str, array: Cuttable) -> Cuttable:
        """Repeat key/value heads and pad the vocabulary, so that every device has as much."""
        axes, tensor = AXES[field], self._tensor
        repeats = tensor // self.config.num_kv_heads
        if "kv_heads" in axes and repeats > 1:
            return RepeatedHeads(array, self.config.num_kv_heads, repeats)
        if "vocab" in axes:
            size = self.config.vocab_size
            return Padded(array, axes.index("vocab"), size + -size % tensor)
        return array


def with_own_head(params: ModelParams, layout: WeightLayout) -> ModelParams:
    """Give the last stage a head where the model's is the embedding, which is on the first."""
    if params.unembed is not None:
        return params
    table = np.asarray(params.embed)[: layout.config.vocab_size]
    return replace(params, unembed=layout.place("unembed", table.T))
