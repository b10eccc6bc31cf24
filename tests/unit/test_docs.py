"""What the docs claim to be tested is tested."""

from __future__ import annotations

import re
from pathlib import Path

from stretto.protocol import ports

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


def test_every_kind_of_a_stores_error_is_in_the_telemetry() -> None:
    """What an alarm compares `kind` with."""
    text = (ROOT / "docs" / "telemetry.md").read_text("utf-8")
    listed = text.split("- `kind` is ", 1)[1].split("; see", 1)[0]
    kinds = {
        name
        for name, each in vars(ports).items()
        if isinstance(each, type)
        and issubclass(each, ports.StoreError)
        and each is not ports.StoreError
    }
    assert [] == sorted(name for name in kinds if f"`{name}`" not in listed)
