"""`clients/js` as it is shipped: small, without dependencies, with types for what it exports."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "clients/js"
SOURCE: Final = (FOLDER / "stretto.js").read_text()
SIZE_BYTES_MAX: Final = 5120


def test_the_client_is_small() -> None:
    """Without a bundler or a minifier: what is served is what is read."""
    assert len(gzip.compress(SOURCE.encode(), 9)) <= SIZE_BYTES_MAX


def test_the_client_needs_nothing() -> None:
    """Its package is of our version, has what its files are, and no dependency."""
    package = json.loads((FOLDER / "package.json").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["version"], project["license"]) == (package["version"], package["license"])
    assert [] == [name for name in package if "ependencies" in name]
    assert [] == re.findall(r"\bimport\b", SOURCE)
    assert [] == [file for file in package["files"] if not (FOLDER / file).is_file()]


def test_types_and_source_export_the_same() -> None:
    """A name without a type is not found, a type without a name fails when it is used."""
    values = r"(?m)^export (?:async )?(?:class|function) (\w+)"
    typed = (FOLDER / "stretto.d.ts").read_text()
    assert ["Stretto", "StrettoError", "groupId"] == sorted(re.findall(values, SOURCE))
    assert sorted(re.findall(values, SOURCE)) == sorted(re.findall(values, typed))
