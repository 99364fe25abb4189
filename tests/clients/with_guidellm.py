"""guidellm: a short benchmark runs through and no request fails; needs the tokenizer."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from plain import BASE_URL, TOKENIZER, need, skip

version = need("guidellm")
if not TOKENIZER:
    skip("guidellm needs --tokenizer FOLDER")
with tempfile.TemporaryDirectory() as name:
    command = [sys.executable, "-m", "guidellm", "benchmark", "--target", BASE_URL]
    command += ["--profile", "concurrent", "--rate", "4", "--max-requests", "12"]
    command += ["--processor", TOKENIZER, "--data", "prompt_tokens=32,output_tokens=8"]
    command += ["--output-dir", name, "--outputs", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    (found,) = Path(name).glob("*.json")
    totals = json.loads(found.read_text())["benchmarks"][0]["metrics"]["request_totals"]
assert totals["errored"] == 0 and totals["successful"] >= 12, totals
print(f"guidellm {version}: {totals}")
