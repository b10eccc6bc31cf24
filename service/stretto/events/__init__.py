"""Committed events: the log, live sessions and their catch-up. No SQL, no HTTP."""
