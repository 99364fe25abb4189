"""The llm command: a model named in its file of models answers, whole and streamed."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from plain import BASE_URL, QUESTION, greedy, model, need, text_of

version = need("llm")
expected = text_of(greedy()).strip()
with tempfile.TemporaryDirectory() as folder:
    entry = f"- model_id: paged\n  model_name: {model()}\n  api_base: {BASE_URL}/v1\n"
    (Path(folder) / "extra-openai-models.yaml").write_text(entry)
    command = [sys.executable, "-m", "llm", "-m", "paged", "-n", QUESTION]
    command += ["-o", "temperature", "0", "-o", "max_tokens", "16"]
    env = os.environ | {"LLM_USER_PATH": folder}
    for more in ([], ["--no-stream"]):
        done = subprocess.run([*command, *more], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == expected, (done.stdout, expected)
print(f"llm {version}: {expected!r}")
