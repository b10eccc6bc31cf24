"""PostgreSQL and NATS of our own, for trying out and for tests."""
