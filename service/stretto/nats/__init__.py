"""Events and commands over NATS JetStream."""
