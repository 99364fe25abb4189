"""lm-eval: a multiple-choice task by log-likelihood, of items made here; needs the tokenizer."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from plain import BASE_URL, TOKENIZER, ask, model, need, skip

version = need("lm-eval")
if not TOKENIZER:
    skip("lm-eval needs --tokenizer FOLDER")
CITIES = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo"}
TASK = """task: capitals
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: " "
metric_list: [{metric: acc}]
"""


def items() -> list[dict]:
    choices = list(CITIES.values())
    names = enumerate(CITIES)
    return [
        {"question": f"The capital of {name} is", "choices": choices, "answer": index}
        for index, name in names
    ]


def likelihood(question: str, choice: str) -> float:
    """The choice's log-likelihood as the server scores the prompt."""
    body = {"echo": True, "max_tokens": 0, "logprobs": 1, "temperature": 0}
    whole = ask("/v1/completions", body | {"prompt": f"{question} {choice}"})
    part = whole["choices"][0]["logprobs"]
    offsets = zip(part["text_offset"], part["token_logprobs"], strict=True)
    return sum(logprob for at, logprob in offsets if at >= len(question))


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    data = folder / "items.jsonl"
    data.write_text("".join(json.dumps(item) + "\n" for item in items()))
    (folder / "capitals.yaml").write_text(TASK.replace("FILE", str(data)))
    args = f"model={model()},base_url={BASE_URL}/v1/completions,tokenizer={TOKENIZER}"
    args += ",tokenizer_backend=huggingface,num_concurrent=4,max_retries=1,tokenized_requests=False"
    command = [
        sys.executable,
        "-m",
        "lm_eval",
        "--model",
        "local-completions",
        "--tasks",
        "capitals",
    ]
    command += ["--model_args", args, "--include_path", name, "--output_path", name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = folder.rglob("results_*.json")
    accuracy = json.loads(found.read_text())["results"]["capitals"]["acc,none"]
right = 0
for item in items():
    scores = [likelihood(item["question"], choice) for choice in item["choices"]]
    right += scores.index(max(scores)) == item["answer"]
assert accuracy == right / len(CITIES), (accuracy, right)
print(f"lm-eval {version}: accuracy {accuracy}, as the plain scores say")
