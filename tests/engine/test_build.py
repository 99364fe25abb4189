"""From options to an engine: ranges, the memory ledger, dtypes, eager mode, and freeing it all."""

import gc
import json
import re

import jax
import pytest
from tiny import make_tiny_folder

from paged_jax import LLM, SamplingParams
from paged_jax.config import OptionError
from paged_jax.engine.memory import check_model_len, plan_memory
from paged_jax.engine_args import EngineArgs

PROMPT = [3 + index for index in range(20)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
MIB = 1 << 20


def ids(llm: LLM) -> list[int]:
    return llm.generate([PROMPT], GREEDY, use_tqdm=False)[0].outputs[0].token_ids


@pytest.mark.parametrize(
    "options",
    [
        {"max_model_len": 0},
        {"max_model_len": -5},
        {"max_model_len": 10**12},
        {"max_model_len": 4096},
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 0},
        {"max_num_batched_tokens": 8, "max_num_seqs": 9},
        {"block_size": -1},
        {"block_size": 1.5},
        {"gpu_memory_utilization": 1.5},
        {"dtype": "int8"},
        {"no_such_option": 1},
        {"kv_cache_memory": 10},
    ],
)
def test_options_out_of_range_are_refused_by_name(tiny_folder, options: dict[str, object]) -> None:
    with pytest.raises(OptionError) as caught:
        LLM(tiny_folder, **options)
    assert next(iter(options)) in str(caught.value).replace("-", "_")


def test_model_length_that_cannot_fit_names_the_largest_that_does(tiny_folder) -> None:
    with pytest.raises(OptionError, match="the largest length that fits is 496"):
        LLM(tiny_folder, dtype="float32", max_model_len=1024, kv_cache_memory=32 * 16 * 512)


def test_ledger_sums_to_the_total_and_names_what_it_holds() -> None:
    args = EngineArgs(kv_cache_memory=100 * MIB, block_size=16)
    ledger = plan_memory(args, weights_bytes=50 * MIB, programs_bytes=7 * MIB, block_bytes=3 * MIB)
    assert (ledger.num_blocks, ledger.token_capacity) == (33, 512)
    assert ledger.total_bytes == 157 * MIB and ledger.unused_bytes == MIB

    measured = ledger.with_programs(20 * MIB)
    assert measured.unused_bytes >= 0
    lines = measured.describe(256).splitlines()
    sizes = [float(re.findall(r"([\d,.]+) MiB", line)[0].replace(",", "")) for line in lines[1:6]]
    assert sum(sizes[:4]) == pytest.approx(sizes[4])
    assert "maximum concurrency for 256 tokens per request: 2.00x" in lines[-1]


def test_pool_without_room_for_a_block_names_the_flag() -> None:
    with pytest.raises(OptionError, match="--kv-cache-memory"):
        plan_memory(
            EngineArgs(kv_cache_memory=MIB), weights_bytes=0, programs_bytes=0, block_bytes=MIB
        )


def test_explicit_number_of_blocks_stands() -> None:
    args = EngineArgs(num_gpu_blocks_override=21)
    ledger = plan_memory(args, weights_bytes=0, programs_bytes=0, block_bytes=MIB)
    check_model_len(args, ledger, 10_000)
    assert ledger.num_blocks == 21


def test_eager_mode_gives_the_same_ids(make_llm, llm: LLM) -> None:
    assert ids(make_llm(enforce_eager=True)) == ids(llm)


def test_sequence_that_outgrows_the_pool_ends(make_llm) -> None:
    small = make_llm(num_gpu_blocks_override=5)
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    outputs = small.generate([PROMPT, PROMPT[::-1]], params, use_tqdm=False)
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
    with pytest.raises(ValueError, match="KV blocks"):
        small.generate([[5] * 65], params, use_tqdm=False)


def test_the_phases_of_the_start_are_kept(llm: LLM) -> None:
    phases = ["import", "read config", "load weights", "compile", "ready"]
    assert list(llm.engine.startup) == phases
    assert all(seconds >= 0 for seconds in llm.engine.startup.values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_generates(make_llm, dtype: str) -> None:
    half = make_llm(dtype=dtype)
    assert half.engine.params.embed.dtype == dtype
    assert len(ids(half)) == 6


def test_dummy_weights_need_only_a_config(tmp_path, tiny_folder) -> None:
    (tmp_path / "config.json").write_bytes((tiny_folder / "config.json").read_bytes())
    options = {"load_format": "dummy", "max_model_len": 64, "kv_cache_memory": MIB}
    with LLM(tmp_path, max_num_batched_tokens=16, **options) as llm:
        assert len(ids(llm)) == 6
        assert llm.get_tokenizer().encode("Aé") == [65, 195, 169]


def test_close_frees_the_memory(tmp_path) -> None:
    folder = make_tiny_folder(tmp_path / "m")
    gc.collect()
    before = sum(array.nbytes for array in jax.live_arrays())
    with LLM(folder, max_model_len=64, max_num_batched_tokens=16, kv_cache_memory=MIB) as llm:
        ids(llm)
        assert sum(array.nbytes for array in jax.live_arrays()) > before + MIB // 2
    gc.collect()
    assert sum(array.nbytes for array in jax.live_arrays()) <= before + 4096


def test_dynamic_rotary_scaling_shares_only_equal_lengths_beyond_the_original(tmp_path) -> None:
    scaling = {"rope_type": "dynamic", "factor": 4.0}
    folder = make_tiny_folder(tmp_path / "m", rope_scaling=scaling, max_position_embeddings=64)
    prompt = [3 + (7 * index) % 250 for index in range(120)]
    options = {"max_num_batched_tokens": 32, "dtype": "float32", "kv_cache_memory": 4 * MIB}
    with LLM(folder, max_num_seqs=8, **options) as llm:
        cold = [llm.generate([p], GREEDY, use_tqdm=False)[0] for p in (prompt, prompt[:100])]
        warm = [llm.generate([p], GREEDY, use_tqdm=False)[0] for p in (prompt, prompt[:100])]
    assert llm.engine.config.scheduler.max_model_len == 256
    assert [output.num_cached_tokens for output in cold] == [0, 0]
    assert [output.num_cached_tokens for output in warm] == [112, 96]
    for one, other in zip(cold, warm, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids


def test_generation_config_gives_the_defaults(tmp_path) -> None:
    folder = make_tiny_folder(tmp_path / "m")
    settings = {"temperature": 0.3, "top_k": 7, "max_new_tokens": 5, "eos_token_id": [2, 9]}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    with LLM(folder, max_model_len=64, max_num_batched_tokens=16, kv_cache_memory=MIB) as llm:
        params = llm.get_default_sampling_params()
        assert (params.temperature, params.top_k, params.max_tokens) == (0.3, 7, 5)
        assert llm.engine.config.model.eos_token_ids == (2, 9)
