"""Actors: tasks that own their state and a bounded mailbox."""
