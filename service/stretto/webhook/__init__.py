"""The outbox's second reader: every event, sent to one HTTP endpoint."""
