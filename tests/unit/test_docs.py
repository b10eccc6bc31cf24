"""What the docs claim to be tested is tested."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_security_claims_name_exists() -> None:
    """A claim without its test is a wish."""
    text = (ROOT / "docs/security.md").read_text()
    named = re.findall(r"`(test_\w+\.py)::(\w+)`", text)
    assert len(named) > 20
    sources: dict[str, str] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        # Unit and integration tests of one part have the same name.
        sources[path.name] = sources.get(path.name, "") + path.read_text()
    missing = [
        f"{file}::{test}" for file, test in named if f"def {test}(" not in sources.get(file, "")
    ]
    assert [] == missing
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.count("|") == 3]
    assert [] == [row for row in rows if "test" not in row]
