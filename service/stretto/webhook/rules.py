"""Webhooks, by Standard Webhooks 1.0.0: what is signed, what an answer means, when to try again.

Nothing here does I/O. The endpoint tells what it was answered, `judge` what that means, and the
store keeps which events are still to be delivered.
"""

from __future__ import annotations

import binascii
import hmac
import ipaddress
import random
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from stretto.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from uuid import UUID

PREFIX: Final = "whsec_"
SECRET_BYTES_MIN: Final = 24
SECRET_BYTES_MAX: Final = 64
# The example schedule of Standard Webhooks: after the last of ten tries, three days on, it is dead.
RETRY_SECONDS: Final = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
# What failed together does not come back together.
JITTER_RATIO_MAX: Final = 0.2
# Where an endpoint that is asked too often does not say for how long.
THROTTLE_SECONDS: Final = 5.0
# An endpoint can silence itself for an hour at a time: by mistake, too, or before it is moved.
THROTTLE_SECONDS_MAX: Final = 3600.0
# RFC 6052: an IPv4 address in the last 32 bits, which a gateway will connect to.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Where events are sent, and how.

    Raises `ConfigurationError` for an address that is not public, unless that is allowed; where a
    name leads is only known when it is called.
    """

    url: str = field(repr=False)
    secrets: tuple[bytes, ...] = field(repr=False)
    """Each request is signed with all of them: that is how a secret is replaced."""
    is_private_allowed: bool = False
    """Whether the endpoint may have an address that is not public."""

    def __post_init__(self) -> None:
        try:
            is_callable = self.is_private_allowed or is_public(urlsplit(self.url).hostname or "")
        except ValueError:
            return
        if not is_callable:
            # Without the address, which may be a secret.
            raise ConfigurationError(
                "STRETTO_WEBHOOK_URL has an address that is not public, which is never called:"
                " STRETTO_WEBHOOK_ALLOW_PRIVATE=true allows it"
            )


def is_public(text: str) -> bool:
    """Whether an address is one of the Internet's hosts, also if it is an IPv4 one in disguise.

    Raises `ValueError` for what is no address.
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
    """Return the secrets that stand in a setting, separated by spaces; raises `ValueError`."""
    return tuple(map(_parse_secret, text.split()))


def _parse_secret(text: str) -> bytes:
    try:
        secret = b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    is_long = SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX
    if not (text.startswith(PREFIX) and is_long):
        # Without its cause, which would repeat the secret.
        raise ValueError(
            f"must be {PREFIX} and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes in base64"
        ) from None
    return secret


def sign(secrets: Sequence[bytes], event_id: str, timestamp: int, body: bytes) -> str:
    """Return the field `webhook-signature`."""
    content = f"{event_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(secret, content, "sha256") for secret in secrets)
    return " ".join(f"v1,{b64encode(digest).decode()}" for digest in digests)


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event on its way to the endpoint, on lease."""

    event_id: UUID
    body: bytes
    tries: int
    """How often it has failed."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What the endpoint has answered."""

    status: int
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No answer came, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotCalled:
    """Its address is not public: it was not called."""


Answer = Answered | Unanswered | NotCalled


@dataclass(frozen=True, slots=True)
class Sent:
    """The endpoint has it."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It counts as a try."""

    reason: str


@dataclass(frozen=True, slots=True)
class Blocked(Failed):
    """The same, by a rule of our own: only an operator can mend it."""


@dataclass(frozen=True, slots=True)
class Throttled:
    """The endpoint wants nothing for a while, whatever it is: no event's fault, and no try."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Gone:
    """The endpoint wants nothing any more."""


Verdict = Sent | Failed | Throttled | Gone


def judge(answer: Answer) -> Verdict:
    """Say what an answer means."""
    match answer:
        case Unanswered(reason):
            return Failed(reason)
        case NotCalled():
            return Blocked("address is not public")
        case Answered(status) if 200 <= status < 300:
            return Sent()
        case Answered(410):
            return Gone()
        case Answered(429, seconds) | Answered(503, float(seconds)):
            wanted = THROTTLE_SECONDS if seconds is None else seconds
            return Throttled(min(wanted, THROTTLE_SECONDS_MAX))
        case Answered(status):
            return Failed(f"answered {status}")


@dataclass(frozen=True, slots=True)
class PutOff:
    """A delivery that did not come about: when to try again, or why not."""

    event_id: UUID
    seconds: float = 0.0
    is_try: bool = False
    dead_reason: str | None = None


def put_off(delivery: Delivery, verdict: Failed | Throttled | Gone) -> PutOff:
    """Say what becomes of a delivery that did not come about."""
    match verdict:
        case Throttled(seconds):
            return PutOff(delivery.event_id, seconds)
        case Gone():
            return PutOff(delivery.event_id)
        case Failed(reason) if delivery.tries >= len(RETRY_SECONDS):
            return PutOff(delivery.event_id, is_try=True, dead_reason=reason)
        case Failed():
            pause = RETRY_SECONDS[delivery.tries] * random.uniform(1, 1 + JITTER_RATIO_MAX)
            return PutOff(delivery.event_id, pause, is_try=True)


class Endpoint(Protocol):
    """Whom events are sent to."""

    async def send(self, event_id: UUID, body: bytes) -> Answer:
        """Send an event; whatever goes wrong on the way is an answer too."""

    async def is_blocked(self) -> bool:
        """Whether it would not be called now, because no address of its is public."""


class WebhookStore(Protocol):
    """Short statements, each a transaction of its own; each raises `Unreachable`."""

    async def open(self) -> None:
        """Begin here, where no process has begun before."""

    async def enrol(self, events_max: int) -> int:
        """Make deliveries of the next events; return how many. All of a transaction, or none."""

    async def take(self, deliveries_max: int, lease_seconds: float) -> Sequence[Delivery]:
        """Lease due deliveries; none while the endpoint is paused or disabled."""

    async def oldest_seconds(self) -> float | None:
        """Return the age of the oldest event that the endpoint still has to get, if there is one."""

    async def settle(self, sent: Collection[UUID], put_off: Collection[PutOff]) -> None:
        """Forget deliveries that came about, put off the others."""

    async def pause(self, seconds: float) -> None:
        """Send nothing for so long, from any replica."""

    async def disable(self) -> bool:
        """Send nothing until somebody enables it, from any replica; return whether that is news."""
