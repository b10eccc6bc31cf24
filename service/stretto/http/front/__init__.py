"""Clients' connections: the limits of each, and the fast path."""
