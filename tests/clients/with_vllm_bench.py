"""vLLM's load client: every request of a short benchmark succeeds with the tokens asked for."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from plain import BASE_URL, TOKENIZER, model, skip

program = shutil.which("vllm-rs")
if program is None or not TOKENIZER:
    skip("needs vllm-rs on the PATH and --tokenizer FOLDER")
with tempfile.TemporaryDirectory() as name:
    command = [program, "bench", "serve", "--backend", "openai", "--base-url", BASE_URL]
    command += ["--model", model(), "--tokenizer", TOKENIZER, "--dataset-name", "random"]
    command += ["--random-input-len", "32", "--random-output-len", "8", "--num-prompts", "20"]
    command += ["--request-rate", "inf", "--ignore-eos", "--seed", "0", "--save-result"]
    command += ["--result-dir", name, "--temperature", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    (found,) = Path(name).glob("*.json")
    result = json.loads(found.read_text())
assert result["completed"] == 20 and result["total_output_tokens"] == 160, result
print(f"vllm-rs: {result['completed']} of 20, {result['total_output_tokens']} tokens")
