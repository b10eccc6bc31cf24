"""Connections and stores on PostgreSQL, each beside its statements."""
