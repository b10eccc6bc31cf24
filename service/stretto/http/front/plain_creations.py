"""What a plain creation says of itself, as the routes would read it: id, token, key, age."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.creation.age import FIRST_SENT, parse_first_sent
from stretto.errors import RequestInvalid
from stretto.telemetry.request_context import taken_id

if TYPE_CHECKING:
    from stretto.http.front.plain_requests import PlainRequest
    from stretto.http.service import Service
    from stretto.http.tokens.authenticator import Verified

_FIRST_SENT: Final = FIRST_SENT.lower().encode()


def taken_id_of(request: PlainRequest) -> str:
    """Return the id of a creation, if its client has sent one that can be used."""
    offered = request.fields.get(b"x-request-id")
    if offered is None:
        return ""
    secrets = (request.fields.get(b"idempotency-key"), request.fields.get(b"authorization"))
    return taken_id(offered.decode(), *(each.decode() for each in secrets if each is not None))


def recall_token(service: Service, request: PlainRequest) -> Verified | None:
    """Return what the token of a creation says, if it is remembered and still valid."""
    authorization = request.authorization
    return None if authorization is None else service.authenticator.recall(authorization)


def key_of(request: PlainRequest) -> str | None:
    """Return the key of a creation, if its key and its body can be taken as they are."""
    key = request.fields.get(b"idempotency-key")
    if (
        key is None
        # A quoted key has to be parsed first.
        or key.startswith(b'"')
        or request.fields.get(b"content-type") != b"application/json"
    ):
        return None
    return key.decode()


def may_claim_of(service: Service, request: PlainRequest) -> bool | None:
    """Whether a creation's age lets it start an attempt; None if it names no time that can be read."""
    field = request.fields.get(_FIRST_SENT)
    if field is None:
        return True
    try:
        return service.age.allows(parse_first_sent(field.decode()))
    except RequestInvalid:
        return None
