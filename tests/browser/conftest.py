"""Says where the browser's tests can run."""

from __future__ import annotations

import os
import shutil

# A machine without Chromium can still run the suite; CI may not.
collect_ignore = (
    [] if shutil.which("chromium") or "CI" in os.environ else ["test_events_in_browser.py"]
)
