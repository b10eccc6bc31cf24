"""A reader of the log of events: every event, sent to one HTTP endpoint."""
