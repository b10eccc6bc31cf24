"""The contract of an actor, the runner that owns all actors, and what they share."""
