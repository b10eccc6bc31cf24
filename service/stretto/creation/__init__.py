"""Creating a group exactly once per key: decisions, flights, writers. No SQL, no HTTP."""
