"""Embedded PostgreSQL and NATS, for trying out and for tests."""
