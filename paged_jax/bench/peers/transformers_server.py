"""The naive server: transformers' generate() behind a FastAPI endpoint, one request at a time.

Needs fastapi and uvicorn beside transformers: `python transformers_server.py MODEL DTYPE THREADS
PORT`. It speaks just enough of /v1/completions for the load client: prompts are token ids, outputs
have exact lengths, and the answer comes as one event when it is complete.
"""

import json
import os
import sys
import threading

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from transformers import AutoModelForCausalLM


def make_app(model):
    """Return the application."""
    app, turn = FastAPI(), threading.Lock()

    @app.get("/health")
    def health():
        return {}

    @app.get("/v1/models")
    def models():
        return {"data": [{"id": "transformers"}]}

    @app.post("/v1/completions")
    def completions(body: dict):
        prompt, count = torch.tensor([body["prompt"]]), body["max_tokens"]
        with turn, torch.no_grad():
            out = model.generate(
                input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count,
                min_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
        num_output = out.shape[1] - prompt.shape[1]
        usage = {"prompt_tokens": prompt.shape[1], "completion_tokens": num_output}
        event = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": usage}
        lines = (f"data: {json.dumps(event)}\n\n", "data: [DONE]\n\n")
        return StreamingResponse(iter(lines), media_type="text/event-stream")

    return app


def main(name, dtype, threads, port):
    """Load the model and serve."""
    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).eval()
    uvicorn.run(make_app(model), port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
