"""Bearer tokens: how they are verified, and with which keys."""
