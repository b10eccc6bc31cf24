"""Which texts are hosts that can be called."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

# A compose file's service may have an underscore in its name.
_HOST_NAME: Final = re.compile(rb"[A-Za-z0-9._-]+")


def is_host(text: str) -> bool:
    """Whether it is an address, or a name that can be looked up.

    A resolver raises `UnicodeError` for a name with an empty part or one of more than 63 bytes.
    """
    try:
        ip_address(text)
    except ValueError:
        pass
    else:
        return True
    try:
        return _HOST_NAME.fullmatch(text.encode("idna")) is not None
    except UnicodeError:
        return False


def mapped_address(text: str) -> IPv4Address | None:
    """Return the address of IPv4 that is written as one of IPv6, as `::ffff:192.0.2.1`; None for other texts."""
    try:
        return IPv6Address(text).ipv4_mapped
    except ValueError:
        return None
