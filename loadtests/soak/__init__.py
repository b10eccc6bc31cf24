"""A long run under a steady mix: what only time and hunger show. See `make soak`."""
