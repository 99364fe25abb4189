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
    report = Path(name) / "report.json"
    command = [sys.executable, "-m", "guidellm", "run", "--disable-console"]
    command += ["--backend", f"kind=openai_http,target={BASE_URL}"]
    command += [
        "--profile",
        "kind=concurrent,streams=4",
        "--constraint",
        "kind=max_requests,count=12",
    ]
    command += ["--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"]
    command += ["--output", f"kind=json,path={report}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    totals = json.loads(report.read_text())["benchmarks"][0]["metrics"]["request_totals"]
assert totals["errored"] == 0 and totals["successful"] >= 12, totals
print(f"guidellm {version}: {totals}")
