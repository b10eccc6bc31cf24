"""Committed events: relay, history, live sessions and their catch-up. No SQL, no HTTP."""
