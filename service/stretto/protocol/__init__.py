"""The protocol of exactly one group per key: states, decisions and the one function that acts."""
