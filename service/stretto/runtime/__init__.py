"""What runs, and what keeps it running: the contract of an actor, and the runner of all of them."""
