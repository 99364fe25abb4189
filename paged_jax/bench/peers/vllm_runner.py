"""vLLM, offline: the LLM class's engine, stepped here so that the time of every token is seen.

Options beside the common ones are keywords of `vllm.LLM`, read as JSON where they can be.
"""

import os
import time

os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import vllm
import wire
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind


class Engine:
    """An engine in memory."""

    def __init__(self, options):
        keywords = {
            name: wire.value_of(value) for name, value in options.items() if name != "threads"
        }
        self.llm = vllm.LLM(**keywords)
        self.engine = self.llm.llm_engine
        self.count = 0
        self.facts = {"name": "vllm", "version": vllm.__version__}

    def run(self, requests):
        """Submit all, then step until all are finished."""
        index_of = {}
        for index, request in enumerate(requests):
            name = f"r{self.count}"
            self.count += 1
            index_of[name] = index
            params = SamplingParams(
                temperature=0.0, max_tokens=request["max_tokens"], ignore_eos=True,
                min_tokens=request["max_tokens"], detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )  # fmt: skip
            self.engine.add_request(name, {"prompt_token_ids": request["prompt"]}, params)
        times, ids = [[] for _ in requests], [[] for _ in requests]
        while self.engine.has_unfinished_requests():
            outputs = self.engine.step()
            now = time.perf_counter()
            for output in outputs:
                index = index_of[output.request_id.split("-")[0]]
                tokens = list(output.outputs[0].token_ids)
                ids[index] += tokens
                times[index] += [now] * len(tokens)
        return times, ids

    def reset(self):
        """Forget cached prefixes."""
        self.llm.reset_prefix_cache()


if __name__ == "__main__":
    wire.serve(Engine)
