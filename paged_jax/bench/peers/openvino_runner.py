"""OpenVINO GenAI's ContinuousBatchingPipeline, stepped here. `model` is an OpenVINO export."""

import time

import numpy as np
import openvino as ov
import openvino_genai as genai
import wire

KNOWN = ("model", "dtype", "threads", "enable_prefix_caching", "max_num_batched_tokens")
KNOWN += ("max_num_seqs", "cache_gib", "kv_cache_precision")
PRECISIONS = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


class Engine:
    """A pipeline in memory."""

    def __init__(self, options):
        wire.refuse_unknown(options, KNOWN)
        self.options = options
        self.count = 0
        self.reset()
        self.facts = {"name": "openvino-genai", "version": genai.get_version()}

    def reset(self):
        """Forget cached prefixes, by making the pipeline anew."""
        options = self.options
        config = genai.SchedulerConfig()
        config.cache_size = int(options.get("cache_gib", 2))
        config.enable_prefix_caching = options.get("enable_prefix_caching", "true") == "true"
        config.max_num_seqs = int(options.get("max_num_seqs", 64))
        config.max_num_batched_tokens = int(options.get("max_num_batched_tokens", 256))
        config.dynamic_split_fuse = True
        properties = {"INFERENCE_NUM_THREADS": int(options["threads"])}
        if options["dtype"] in PRECISIONS:
            properties["INFERENCE_PRECISION_HINT"] = PRECISIONS[options["dtype"]]
        if "kv_cache_precision" in options:
            properties["KV_CACHE_PRECISION"] = options["kv_cache_precision"]
        self.pipeline = None  # frees the one there was before the next takes memory
        self.pipeline = genai.ContinuousBatchingPipeline(
            options["model"], config, "CPU", properties
        )

    def run(self, requests):
        """Submit all, then step until all are finished."""
        handles = [self._add(request) for request in requests]
        times, ids = [[] for _ in requests], [[] for _ in requests]
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            now = time.perf_counter()
            for index, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        ids[index] += output.generated_ids
                        times[index] += [now] * len(output.generated_ids)
        return times, ids

    def _add(self, request):
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = request["max_tokens"]
        config.ignore_eos, config.do_sample = True, False
        self.count += 1
        prompt = ov.Tensor(np.array([request["prompt"]], dtype=np.int64))
        return self.pipeline.add_request(self.count, prompt, config)


if __name__ == "__main__":
    wire.serve(Engine)
