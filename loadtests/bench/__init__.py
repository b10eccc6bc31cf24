"""The benchmark: stretto beside a conventional implementation, on one machine in one run."""
