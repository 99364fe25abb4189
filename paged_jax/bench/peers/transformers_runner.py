"""transformers: `mode=seq` is one generate() after another, `mode=static` left-padded batches of
`batch_size`, each of which runs to its longest output.
"""

import os
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
import wire
from transformers import AutoModelForCausalLM, StoppingCriteriaList

KNOWN = ("model", "dtype", "threads", "mode", "batch_size")
PAD = 2


class Engine:
    """A model in memory."""

    def __init__(self, options):
        wire.refuse_unknown(options, KNOWN)
        torch.set_num_threads(int(options["threads"]))
        torch.set_grad_enabled(False)
        model = AutoModelForCausalLM.from_pretrained(options["model"], dtype=options["dtype"])
        self.model = model.eval()
        mode = options.get("mode", "seq")
        self.batch_size = 1 if mode == "seq" else int(options.get("batch_size", 64))
        self.facts = {
            "name": f"transformers {mode}",
            "version": f"{transformers.__version__} (torch {torch.__version__})",
        }

    def run(self, requests):
        """Generate, batch after batch."""
        times, ids = [], []
        for first in range(0, len(requests), self.batch_size):
            more = self._generate(requests[first : first + self.batch_size])
            times += more[0]
            ids += more[1]
        return times, ids

    def reset(self):
        """Nothing is kept between requests."""

    def _generate(self, batch):
        width = max(len(request["prompt"]) for request in batch)
        steps = max(request["max_tokens"] for request in batch)
        tokens = torch.full((len(batch), width), PAD)
        mask = torch.zeros((len(batch), width), dtype=torch.long)
        for row, request in enumerate(batch):
            tokens[row, width - len(request["prompt"]) :] = torch.tensor(request["prompt"])
            mask[row, width - len(request["prompt"]) :] = 1
        clock = Clock()
        out = self.model.generate(
            input_ids=tokens, attention_mask=mask, max_new_tokens=steps, min_new_tokens=steps,
            do_sample=False, eos_token_id=None, pad_token_id=PAD,
            stopping_criteria=StoppingCriteriaList([clock]),
        )  # fmt: skip
        ids = out[:, width:].tolist()
        lengths = [request["max_tokens"] for request in batch]
        return [clock.times[:n] for n in lengths], [
            row[:n] for row, n in zip(ids, lengths, strict=True)
        ]


class Clock:
    """A stopping criterion that never stops; it takes the time of each step."""

    def __init__(self):
        self.times = []

    def __call__(self, ids, scores, **_):
        """Note the time."""
        self.times.append(time.perf_counter())
        return torch.zeros(ids.shape[0], dtype=torch.bool)


if __name__ == "__main__":
    wire.serve(Engine)
