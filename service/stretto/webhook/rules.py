"""Webhooks, by Standard Webhooks 1.0.0: what is signed, what an answer means, when to try again.

Nothing here does I/O. The endpoint returns an answer, `judge` decides what it means, and the store
keeps the events that are still to be delivered.
"""

from __future__ import annotations

import binascii
import hmac
import ipaddress
import random
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from stretto.setting import setting
from stretto.start_errors import ConfigurationError
from stretto.targets.delivery import PutOff

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.targets.delivery import Delivery

PREFIX: Final = "whsec_"
SECRET_BYTES_MIN: Final = 24
SECRET_BYTES_MAX: Final = 64
# The example schedule of Standard Webhooks: ten tries in three days, then a dead letter.
RETRY_SECONDS: Final = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
# Deliveries that failed together are not retried together.
JITTER_RATIO_MAX: Final = 0.2
# Pause after a 429 without `Retry-After`.
THROTTLE_SECONDS: Final = 5.0
# Shortest pause after an answer that asks for one: 0, or a time that is over, would let every delivery
# be sent again at once, and again, without ever counting as a try.
THROTTLE_SECONDS_MIN: Final = 1.0
# Longest pause that an endpoint can ask for: it may ask by mistake, or just before it is moved.
THROTTLE_SECONDS_MAX: Final = 3600.0
# RFC 6052: the last 32 bits are an IPv4 address, to which a gateway connects.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")


class PrivateAddress(ConfigurationError, ValueError):
    """The endpoint's address is not public. As a `ValueError`, one of the settings' errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Where events are sent, and how.

    Raises `ConfigurationError` for an address that is not public, unless that is allowed. A host
    name is resolved only when it is called.
    """

    webhook_url: str = setting(
        "",
        "where every event is sent, by Standard Webhooks; empty: nowhere",
        is_secret=True,
    )
    webhook_secret: tuple[bytes, ...] = setting(
        (),
        "whsec_... that signs webhooks; several, separated by spaces, to replace one",
        is_secret=True,
    )
    """Each request is signed with all of them, so that a secret can be replaced."""
    webhook_allow_private: bool = setting(
        default=False, description="whether the webhook may have an address that is not public"
    )

    def __post_init__(self) -> None:
        try:
            host = urlsplit(self.webhook_url).hostname or ""
            is_callable = self.webhook_allow_private or is_public(host)
        except ValueError:
            return
        if not is_callable:
            # The text leaves out the address, which may be a secret.
            raise PrivateAddress(
                "STRETTO_WEBHOOK_URL has an address that is not public and is never called:"
                " STRETTO_WEBHOOK_ALLOW_PRIVATE=true allows it"
            )


def is_public(text: str) -> bool:
    """Whether an address is a public host, also where IPv6 wraps an IPv4 address.

    Raises `ValueError` for a text that is no address.
    """
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
        return address.is_global and address in _UNICAST
    return address.is_global and not address.is_multicast


def parse_secrets(text: str) -> tuple[bytes, ...]:
    """Return the secrets of a setting, which separates them by spaces; raises `ValueError`."""
    return tuple(map(_parse_secret, text.split()))


def _parse_secret(text: str) -> bytes:
    try:
        secret = b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    is_long = SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX
    if not (text.startswith(PREFIX) and is_long):
        # Without the cause, whose text would contain the secret.
        raise ValueError(
            f"must be {PREFIX} and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes in base64"
        ) from None
    return secret


def sign(secrets: Sequence[bytes], event_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of the field `webhook-signature`."""
    content = f"{event_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(secret, content, "sha256") for secret in secrets)
    return " ".join(f"v1,{b64encode(digest).decode()}" for digest in digests)


@dataclass(frozen=True, slots=True)
class Answered:
    """The endpoint has answered."""

    status: int
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No answer came, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotConnected:
    """No connection to the endpoint could be opened, for this reason: it has seen nothing."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotCalled:
    """The endpoint was not called: its address is not public."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The sender has ended the request, because too many took long. It does not count as a try."""

    reason: str


Answer = Answered | Unanswered | NotConnected | NotCalled | Cut


@dataclass(frozen=True, slots=True)
class Sent:
    """The endpoint has accepted the event."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The delivery failed; it counts as a try."""

    reason: str


@dataclass(frozen=True, slots=True)
class Blocked(Failed):
    """A failure by our own rule, which only an operator can end."""


@dataclass(frozen=True, slots=True)
class Unreached:
    """The endpoint is away, or this process cannot reach it. It does not count as a try."""

    reason: str


@dataclass(frozen=True, slots=True)
class Throttled:
    """The endpoint asks for a pause of all events. It does not count as a try."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Gone:
    """The endpoint is gone for good (410)."""


Verdict = Sent | Failed | Unreached | Cut | Throttled | Gone


def judge(answer: Answer) -> Verdict:
    """Return what an answer means."""
    match answer:
        case Unanswered(reason):
            return Failed(reason)
        case NotConnected(reason):
            return Unreached(reason)
        case Cut():
            return answer
        case NotCalled():
            return Blocked("address is not public")
        case Answered(status) if 200 <= status < 300:
            return Sent()
        case Answered(410):
            return Gone()
        case Answered(429, seconds) | Answered(503, float(seconds)):
            wanted = THROTTLE_SECONDS if seconds is None else seconds
            return Throttled(min(max(wanted, THROTTLE_SECONDS_MIN), THROTTLE_SECONDS_MAX))
        case Answered(status):
            return Failed(f"answered {status}")


def put_off(delivery: Delivery, verdict: Failed | Unreached | Cut | Throttled | Gone) -> PutOff:
    """Return when a delivery that was not accepted is tried again, or why it is not."""
    match verdict:
        case Throttled(seconds):
            return PutOff(delivery.event.event_id, seconds)
        case Unreached() | Gone():
            # Due at once: another process may reach it. After a 410 nothing is taken until an operator
            # enables the webhook again.
            return PutOff(delivery.event.event_id)
        case Failed(reason) if delivery.tries >= len(RETRY_SECONDS):
            return PutOff(delivery.event.event_id, is_try=True, dead_reason=reason)
        case Failed():
            return PutOff(delivery.event.event_id, _pause(delivery.tries), is_try=True)
        case Cut():
            return PutOff(delivery.event.event_id, _pause(tries=0))


def _pause(tries: int) -> float:
    return RETRY_SECONDS[tries] * random.uniform(1, 1 + JITTER_RATIO_MAX)
