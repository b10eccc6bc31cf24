"""Faults on real processes: a proxy that breaks the wire, a server to be killed, and what follows."""
