"""The clients of a load test: one kind in each module."""
