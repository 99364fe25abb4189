"""The tables of rules, faults and tests: every test they name exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["server/README.md", "tests/README.md"])
def test_every_test_that_is_named_exists(page):
    text = (ROOT / page).read_text()
    text = text.replace("H `test_", "`tests/server/test_hardening.py` `test_")
    files = re.findall(r"`(tests/[a-z_/]+\.py)`(?: `(test_[a-z0-9_]+)`)?", text)
    assert len(files) > 30
    for file, name in files:
        assert f"def {name}(" in (ROOT / file).read_text() or not name, (file, name)
