"""Decode steps of one model by transformers on torch, a program of its own: see `torch_peer`.

Takes a JSON object of `Wanted`'s fields, prints one of the seconds that groups of steps took. Needs
torch and transformers, not jax; the weights are random, the attention is torch's own.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CONFIGS = {"llama": "LlamaConfig", "qwen3": "Qwen3Config"}


@dataclass(frozen=True)
class Wanted:
    """What to measure.

    Attributes:
        family: a key of CONFIGS.
        shape: fields of the transformers configuration.
        context: tokens each of the `batch` sequences has when decoding begins.
        groups: of `calls` steps each, timed together, after one that is not.
    """

    family: str
    shape: dict[str, int | bool]
    dtype: str
    batch: int
    context: int
    groups: int
    calls: int


def main(argument: str) -> None:
    """Measure, print, end."""
    wanted = Wanted(**json.loads(argument))
    torch = importlib.import_module("torch")
    with torch.inference_mode():
        step, wait = _prepare(torch, wanted)
        print(json.dumps({"torch": torch.__version__, "seconds": _time(step, wait, wanted)}))


def _prepare(torch: Any, wanted: Wanted) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return a decode step, and how to wait for all that was started."""
    transformers = importlib.import_module("transformers")
    is_gpu = torch.cuda.is_available()
    config = getattr(transformers, CONFIGS[wanted.family])(**wanted.shape)
    torch.set_default_device("cuda" if is_gpu else "cpu")
    dtype = getattr(torch, wanted.dtype)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    prompt = torch.randint(wanted.shape["vocab_size"], (wanted.batch, wanted.context - 1))
    state = model(prompt, use_cache=True, logits_to_keep=1)

    def step() -> None:
        nonlocal state
        ids = state.logits[:, -1].argmax(-1, keepdim=True)
        state = model(ids, past_key_values=state.past_key_values, use_cache=True)

    return step, torch.cuda.synchronize if is_gpu else lambda: None


def _time(step: Callable[[], None], wait: Callable[[], None], wanted: Wanted) -> list[float]:
    """Return the seconds of one step, a figure a group."""
    seconds: list[float] = []
    for _ in range(1 + wanted.groups):
        start = time.perf_counter()
        for _ in range(wanted.calls):
            step()
        wait()
        seconds.append((time.perf_counter() - start) / wanted.calls)
    return seconds[1:]


if __name__ == "__main__":
    main(sys.argv[1])
