"""Who uses the service: one kind of client in each module."""
