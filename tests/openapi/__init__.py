"""The OpenAPI document: how it is written down, and what the tests demand of it."""
