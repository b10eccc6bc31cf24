"""Clients' connections: what each may take, and what is answered before it is parsed."""
