"""In words, why an answer did not come over the network."""

from __future__ import annotations

import os
import ssl


def network_failure(error: BaseException) -> str:
    """Return in words why an answer did not come.

    Texts of such errors may hold the address, which may hold a secret; a class is no word for people.
    """
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, UnicodeError):
        return "the host's name cannot be looked up"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({_tls_failure(error)})"
    if isinstance(error, OSError):
        errno = error.errno or 0
        # Names that are not found have numbers of their own, below 0, and name no address.
        return os.strerror(errno) if errno > 0 else error.strerror or "the connection broke"
    return "the connection ended before a complete answer"


def _tls_failure(error: ssl.SSLError) -> str:
    # aiohttp's errors are of the library's classes, and have none of their attributes.
    cause = getattr(error, "os_error", error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        # Behind a comma it names the host.
        found = str(getattr(cause, "verify_message", "")).partition(",")[0]
        return "the certificate is not accepted" + (f": {found}" if found else "")
    return getattr(cause, "reason", None) or "the handshake failed"
