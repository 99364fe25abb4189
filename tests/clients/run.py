"""Run the scripts of this folder against a live server; a line of JSON for each, an exit code.

python tests/clients/run.py --base-url http://127.0.0.1:8000 [--tokenizer FOLDER] [NAME ...]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("langchain", "litellm", "instructor", "llm", "lm_eval", "guidellm", "vllm_bench")
SKIPPED = 77


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--tokenizer", default="")
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    results = [run(name, options) for name in options.names or NAMES]
    return int(any(result["outcome"] == "failed" for result in results))


def run(name: str, options: argparse.Namespace) -> dict[str, object]:
    """Run one script in a process of its own and print what became of it."""
    env = os.environ | {
        "BASE_URL": options.base_url,
        "TOKENIZER": options.tokenizer,
        "HF_HUB_OFFLINE": "1",
        "OPENAI_API_KEY": os.environ.get("OPENAI_API_KEY", "none"),
    }
    start = time.monotonic()
    command = [sys.executable, str(HERE / f"with_{name}.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=options.timeout)
    outcome = {0: "passed", SKIPPED: "skipped"}.get(done.returncode, "failed")
    last = (done.stdout if outcome == "passed" else done.stderr).strip().splitlines()[-1:]
    seconds = round(time.monotonic() - start, 1)
    result = {"client": name, "outcome": outcome, "seconds": seconds, "told": "".join(last)[:300]}
    print(json.dumps(result), flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
