"""The Dockerfile: what can be said of it without an engine, and its own steps in a clean folder."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paged_jax.flags import parse

ROOT = Path(__file__).parents[1]
LINES = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text()).splitlines()


def instructions(word: str, target: str | None = None) -> list[str]:
    """The arguments of an instruction, in order; of one stage and its base, if one is named."""
    stage, found = "", list[str]()
    for line in LINES:
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stage = rest.split()[-1]
        if name == word and (target is None or stage in (target, "base")):
            found.append(rest.strip())
    return found


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_image_is_not_root_and_knows_its_health(target):
    assert f"base AS {target}" in instructions("FROM", target)
    assert instructions("USER", target) == ["2000:0"]
    assert instructions("VOLUME", target) == ["/cache"] and instructions("EXPOSE", target)
    (check,) = instructions("HEALTHCHECK", target)
    assert "/health" in check and "XDG_CACHE_HOME=/cache" in instructions("ENV", target)[0]


def test_what_is_copied_is_there_and_is_sent_to_the_engine():
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    for line in instructions("COPY"):
        *sources, _ = line.split()
        for source in sources:
            assert (ROOT / source).exists() and f"!{source}" in sent


def test_command_needs_a_key_and_takes_flags(monkeypatch, capsys):
    (command,) = instructions("ENTRYPOINT")
    argv = re.findall(r'"([^"]+)"', command)
    assert argv[:3] == ["python", "-m", "paged_jax.serve"]
    monkeypatch.delenv("PAGED_JAX_API_KEY", raising=False)
    with pytest.raises(SystemExit):
        parse(argv[3:])
    assert "--api-key" in capsys.readouterr().err
    monkeypatch.setenv("PAGED_JAX_API_KEY", "k")
    options, _ = parse([*argv[3:], "--max-model-len", "64"])
    assert options.host == "0.0.0.0"


def test_compose_uses_the_targets_without_privileges():
    text = (ROOT / "compose.yaml").read_text()
    targets = set(re.findall(r"target: (\w+)", text))
    assert targets == {line.split()[-1] for line in instructions("FROM")} - {"base"}
    for word in ("read_only: true", "cap_drop: [ALL]", "no-new-privileges", "PAGED_JAX_API_KEY:?"):
        assert word in text
    assert not re.search(r"privileged: true|docker\.sock|network_mode", text)


@pytest.mark.parametrize("line", instructions("RUN"))
def test_shell_steps_are_shell(line):
    subprocess.run(["bash", "-n"], input=line, text=True, check=True)


@pytest.mark.install
def test_installing_steps_work_in_a_clean_folder(tmp_path):
    """Runs the pip line of the CPU image in a fresh environment, with what the image has."""
    source = tmp_path / "src"
    source.mkdir()
    ignore = shutil.ignore_patterns("__pycache__")
    for line in instructions("COPY", "cpu"):
        *names, _ = line.split()
        for name in names:
            path = ROOT / name
            if path.is_dir():
                shutil.copytree(path, source / name, ignore=ignore)
            else:
                shutil.copy(path, source)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv/bin/python")
    for line in instructions("RUN", "cpu"):
        if line.startswith("python "):
            subprocess.run([python, *shlex.split(line)[1:]], cwd=source, check=True)
    check = (
        "import paged_jax, server, pathlib; from server.static_page import _FILES;"
        "assert 'index.html' in _FILES and 'venv' in paged_jax.__file__;"
        "assert list((pathlib.Path(paged_jax.__file__).parent / 'device/cpu/csrc').iterdir())"
    )
    subprocess.run([python, "-c", check], cwd=tmp_path, check=True)
    done = subprocess.run(
        [python, "-m", "paged_jax.serve", "--help"], cwd=tmp_path, capture_output=True, check=True
    )
    assert b"--api-key" in done.stdout
