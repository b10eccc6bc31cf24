"""Carries events to replicas and to the rest of a backend, and commands from it."""
