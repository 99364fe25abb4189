"""lm-eval: 50 items by log-likelihood and 50 by generation, network-free.

With torch at hand and a folder that has the weights too, transformers is the judge: lm-eval's own
figures on the model loaded by it, item by item. Otherwise the plain scores of the server are.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from plain import BASE_URL, TOKENIZER, ask, model, need, skip

version = need("lm-eval")
if not TOKENIZER:
    skip("lm-eval needs --tokenizer FOLDER")
CAPITALS = dict(
    pair.split(":")
    for pair in (
        "France:Paris Italy:Rome Spain:Madrid Japan:Tokyo Egypt:Cairo Germany:Berlin "
        "Austria:Vienna Poland:Warsaw Greece:Athens Portugal:Lisbon Ireland:Dublin Norway:Oslo "
        "Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Russia:Moscow Ukraine:Kyiv "
        "Hungary:Budapest Romania:Bucharest Bulgaria:Sofia Serbia:Belgrade Croatia:Zagreb "
        "Turkey:Ankara Iran:Tehran Iraq:Baghdad Syria:Damascus Lebanon:Beirut Jordan:Amman "
        "China:Beijing Mongolia:Ulaanbaatar Thailand:Bangkok Vietnam:Hanoi Cambodia:Phnom "
        "Laos:Vientiane Indonesia:Jakarta Philippines:Manila Nepal:Kathmandu Pakistan:Islamabad "
        "Afghanistan:Kabul Kenya:Nairobi Uganda:Kampala Ghana:Accra Nigeria:Abuja Senegal:Dakar "
        "Morocco:Rabat Tunisia:Tunis Cuba:Havana Peru:Lima Chile:Santiago Canada:Ottawa"
    ).split()
)
TASK = """task: TASK
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
doc_to_text: "{{question}}"
target_delimiter: " "
"""
CHOICE = """output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
"""
WRITTEN = """output_type: generate_until
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n", ".", ","], max_gen_toks: 8, do_sample: false, temperature: 0}
filter_list: [{name: stripped, filter: [{function: remove_whitespace}, {function: take_first}]}]
metric_list: [{metric: exact_match, ignore_case: true, ignore_punctuation: true}]
"""


def items() -> list[dict]:
    cities = list(CAPITALS.values())
    return [
        {
            "question": f"The capital of {land} is",
            "choices": [cities[(at + step) % len(cities)] for step in range(4)],
            "answer": 0,
        }
        for at, land in enumerate(CAPITALS)
    ]


def likelihood(question: str, choice: str) -> float:
    """The choice's log-likelihood as the server scores the prompt."""
    body = {"echo": True, "max_tokens": 0, "logprobs": 1, "temperature": 0}
    whole = ask("/v1/completions", body | {"prompt": f"{question} {choice}"})
    part = whole["choices"][0]["logprobs"]
    offsets = zip(part["text_offset"], part["token_logprobs"], strict=True)
    return sum(logprob for at, logprob in offsets if at >= len(question))


def evaluate(folder: Path, kind: str, args: str) -> tuple[dict[str, float], dict[str, list]]:
    """Run lm-eval; return the figure of each task, and what each item was answered."""
    out = folder / kind
    command = [sys.executable, "-m", "lm_eval", "--model", kind, "--model_args", args]
    command += ["--tasks", "capitals_choice,capitals_written", "--include_path", str(folder)]
    command += ["--output_path", str(out), "--log_samples", "--device", "cpu", "--batch_size", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = out.rglob("results_*.json")
    results = json.loads(found.read_text())["results"]
    figures = {
        name: next(v for key, v in told.items() if key.split(",")[0] in ("acc", "exact_match"))
        for name, told in results.items()
    }
    answers = {}
    for name in results:
        (found,) = out.rglob(f"samples_{name}_*.jsonl")
        rows = [json.loads(line) for line in found.read_text().splitlines()]
        rows.sort(key=lambda row: row["doc_id"])
        answers[name] = [row["filtered_resps"] for row in rows]
    return figures, answers


def compare(served: dict[str, list], judged: dict[str, list]) -> float:
    """Check the answers item by item; return the largest difference of a log-likelihood."""
    assert served["capitals_written"] == judged["capitals_written"]
    pairs = zip(served["capitals_choice"], judged["capitals_choice"], strict=True)
    return max(
        abs(float(one[0]) - float(other[0]))
        for ours, theirs in pairs
        for one, other in zip(ours, theirs, strict=True)
    )


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    data = folder / "items.jsonl"
    data.write_text("".join(json.dumps(item) + "\n" for item in items()))
    for task, more in (("capitals_choice", CHOICE), ("capitals_written", WRITTEN)):
        text = TASK.replace("TASK", task).replace("FILE", str(data)) + more
        (folder / f"{task}.yaml").write_text(text)
    args = f"model={model()},base_url={BASE_URL}/v1/completions,tokenizer={TOKENIZER}"
    args += ",tokenizer_backend=huggingface,num_concurrent=4,max_retries=1,tokenized_requests=False"
    figures, answers = evaluate(folder, "local-completions", args)
    if importlib.util.find_spec("torch") and list(Path(TOKENIZER).glob("*.safetensors")):
        judged, theirs = evaluate(folder, "hf", f"pretrained={TOKENIZER},dtype=float32")
        assert figures == judged, (figures, judged)
        judge = f"as transformers says, log-likelihoods within {compare(answers, theirs):.1e}"
    else:
        right = 0
        for item in items():
            scores = [likelihood(item["question"], choice) for choice in item["choices"]]
            right += scores.index(max(scores)) == item["answer"]
        assert figures["capitals_choice"] == right / len(CAPITALS), (figures, right)
        judge = "as the plain scores say"
assert len(CAPITALS) == 50
print(f"lm-eval {version}: {figures}, {judge}")
