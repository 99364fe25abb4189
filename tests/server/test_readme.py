"""server/README.md: every test it names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_is_named_exists():
    text = (ROOT / "server/README.md").read_text()
    text = text.replace("H `test_", "`tests/server/test_hardening.py` `test_")
    files = re.findall(r"`(tests/[a-z_/]+\.py)`(?: `(test_[a-z0-9_]+)`)?", text)
    assert len(files) > 30
    for file, name in files:
        assert f"def {name}(" in (ROOT / file).read_text() or not name, (file, name)
