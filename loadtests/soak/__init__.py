"""A long run under a steady mix: finds leaks and effects of busy processors. See `make soak`."""
