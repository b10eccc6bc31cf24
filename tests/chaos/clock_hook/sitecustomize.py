"""Python runs this at its start where PYTHONPATH says so: the process's wall clock is a test's.

The file that CLOCK_OFFSET_FILE names holds by how many seconds it is wrong, and may change.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_offset_file = Path(os.environ["CLOCK_OFFSET_FILE"])
_right_time = time.time


def _wrong_time() -> float:
    return _right_time() + float(_offset_file.read_text())


time.time = _wrong_time
