"""The HTTP contract as an OpenAPI 3.1 document: data, which is served as it is.

Nothing here is made from the code. The tests compare the document with the code that enforces it:
routes, codes, statuses, limits, headers, examples.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

# `servers` is relative to where the document is read, so that it is right under a host's prefix too.
DOCUMENT: Final = (files("stretto.http") / "openapi.json").read_bytes()
