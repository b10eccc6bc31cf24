"""Committed events: the relay, the history, live sessions and their catch-up. No SQL, no HTTP."""
