"""`stretto openapi`: the HTTP contract."""

from __future__ import annotations

import sys

from stretto.http.openapi import DOCUMENT


def openapi() -> None:
    """Print the HTTP contract as OpenAPI 3.1."""
    sys.stdout.write(DOCUMENT.decode())
    # Here, where an error has its exit code, and not at the end of the process.
    sys.stdout.flush()
