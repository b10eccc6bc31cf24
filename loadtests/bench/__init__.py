"""The benchmark: stretto beside what one would write without it, on one machine in one run."""
