"""How large everything is that `bench gpu` measures: in earnest, and rehearsed on a CPU."""

from dataclasses import dataclass, replace

from paged_jax.bench.models import LLAMA_3_1_8B, QWEN3_8B, SMOLLM2_135M
from paged_jax.bench.timing import Effort
from paged_jax.config import ModelConfig
from pallas_kernels.arg_specs import ATTENTION_SPECS, AttentionSpec


@dataclass(frozen=True)
class Queries:
    """`num_seqs` sequences of `context` tokens, the last `query_len` of them new.

    The first `common` tokens lie in the same blocks for all.
    """

    num_seqs: int
    query_len: int
    context: int
    common: int = 0

    @property
    def num_pairs(self) -> int:
        """How many pairs of query and key the causal mask lets through."""
        hidden = self.query_len * (self.query_len - 1) // 2
        return self.num_seqs * (self.query_len * self.context - hidden)


@dataclass(frozen=True)
class Sizes:
    """One scale of the whole benchmark.

    Attributes:
        interpret: run kernels in Pallas's interpreter.
        specs: named shapes the numerics are checked on.
        decode: (batch, context) of decode attention.
        product_shape: (inner, outer) of the quantised products.
        cold_bytes: attention goes round pools of this size in all, so that no cache holds them.
        torch_batches: of the steps that transformers on torch runs too.
        step_context: tokens of each sequence in a decode step.
        prefill_tokens: new tokens of a prefill step, all of one sequence.
    """

    interpret: bool
    specs: tuple[AttentionSpec, ...]
    copy_bytes: int
    matmul_size: int
    heads: tuple[int, int, int]
    decode: tuple[tuple[int, int], ...]
    prefill: tuple[Queries, ...]
    product_shape: tuple[int, int]
    product_rows: tuple[int, ...]
    cold_bytes: int
    models: dict[str, ModelConfig]
    batches: tuple[int, ...]
    torch_batches: tuple[int, ...]
    step_context: int
    prefill_tokens: int
    effort: Effort


FULL = Sizes(
    interpret=False,
    specs=ATTENTION_SPECS,
    copy_bytes=4 << 30,
    matmul_size=8192,
    heads=(32, 8, 128),
    decode=tuple((batch, context) for context in (8192, 1024, 32768) for batch in (32, 1, 8, 128)),
    prefill=(Queries(1, 8192, 8192), Queries(4, 2048, 2048), Queries(1, 2048, 32768)),
    product_shape=(4096, 14336),
    product_rows=(1, 8, 16, 64, 256),
    cold_bytes=256 << 20,
    models={"Llama-3.1-8B": LLAMA_3_1_8B, "SmolLM2-135M": SMOLLM2_135M, "Qwen3-8B": QWEN3_8B},
    batches=(1, 256, 32),
    torch_batches=(32, 1),
    step_context=1024,
    prefill_tokens=2048,
    effort=Effort(),
)


def _tiny(config: ModelConfig) -> ModelConfig:
    return replace(
        config, vocab_size=256, num_layers=1, embed_dim=32, mlp_dim=64, num_q_heads=4,
        num_kv_heads=2, head_dim=16,
    )  # fmt: skip


REHEARSAL = Sizes(
    interpret=True,
    specs=ATTENTION_SPECS[:1],
    copy_bytes=1 << 20,
    matmul_size=64,
    heads=(4, 2, 16),
    decode=((2, 64),),
    prefill=(Queries(1, 16, 32),),
    product_shape=(128, 128),
    product_rows=(16,),
    cold_bytes=1,
    models={"Qwen3-8B": _tiny(QWEN3_8B)},
    batches=(2,),
    torch_batches=(2,),
    step_context=32,
    prefill_tokens=16,
    effort=Effort(warm_up=1, groups=2, calls=1),
)
