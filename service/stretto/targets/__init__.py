"""What leads events out of the log, to the bus and to the webhook's endpoint. No SQL, no HTTP."""
