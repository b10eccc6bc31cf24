"""The HTTP contract as an OpenAPI 3.1 document: a file that is served as it is.

The document is not generated. Tests compare it with the code that enforces it: routes, codes,
statuses, limits, headers, examples.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

# Its `servers` is relative to the document's own URL: so it is right under a host's prefix too.
DOCUMENT: Final = (files("stretto.http") / "openapi.json").read_bytes()
