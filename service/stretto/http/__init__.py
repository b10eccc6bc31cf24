"""The HTTP contract: routes, problem documents, tokens."""
