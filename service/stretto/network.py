"""Says in words why an answer did not come over the network."""

from __future__ import annotations

import os
import ssl


def network_failure(error: BaseException) -> str:
    """Return in words why an answer did not come.

    Texts of such errors may hold the address, which may hold a secret; a class is no word for people.
    """
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or 'the certificate is not accepted'})"
    if isinstance(error, OSError):
        errno = error.errno or 0
        # Names that are not found have numbers of their own, below 0, and name no address.
        return os.strerror(errno) if errno > 0 else error.strerror or "the connection broke"
    return "the connection ended before a complete answer"
