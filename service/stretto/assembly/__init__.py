"""Puts the parts of a service together: what a host uses."""
