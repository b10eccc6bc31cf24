"""What becomes of a command's outcome: a reply to its sender, a dead letter for the operator.

A message that the server does not take makes it cut our connection, and the acknowledgement of the
command is lost: it would come again and cut the next connection. So all that is published for a
command is bounded.
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

import orjson
from nats.errors import Error, MaxPayloadError
from nats.js.api import Header
from nats.js.errors import APIError, NoStreamResponseError

from stretto.codec import PROBLEM_CONTENT_TYPE, STATUS, problem
from stretto.errors import RequestInvalid, StrettoError
from stretto.nats.command_context import own_headers
from stretto.nats.command_streams import provide_dead_stream
from stretto.nats.connection import NATS_ERRORS, TOO_LARGE
from stretto.nats.deployment import UnfitStream

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from stretto.creation.flight import Answer
    from stretto.nats.connection import Link
    from stretto.nats.deployment import Deployment

# JetStream acknowledges to the message's own reply subject, and does not store that subject.
REPLY_TO: Final = "Stretto-Reply-To"
STATUS_CODE: Final = "Stretto-Status"
# A server cuts a connection that sends a line of more than 4,096 bytes. An inbox has some 60.
REPLY_CHARACTERS_MAX: Final = 256
# Only these: an outcome is published with our permissions, not with the sender's.
_REPLY_TOKENS: Final = r"(\.[A-Za-z0-9_-]+){1,8}"


class DeadLetterLost(Error):
    """The stream of dead letters has not taken one."""


def reply_subject(headers: dict[str, str], deployment: Deployment) -> str | None:
    """Return the subject for the outcome; raises `RequestInvalid` if it is no reply subject."""
    subject = headers.get(REPLY_TO)
    own = deployment.reply_subjects
    if subject is not None and (
        len(subject) > REPLY_CHARACTERS_MAX
        or not re.fullmatch(rf"(_INBOX|{re.escape(own)}){_REPLY_TOKENS}", subject)
    ):
        raise RequestInvalid(
            [],
            f"{REPLY_TO} must begin with _INBOX. or {own}. and have at most"
            f" {REPLY_CHARACTERS_MAX} characters",
        )
    return subject


async def reply_success(link: Link, subject: str | None, answer: Answer) -> None:
    """Publish the group; without a subject nothing."""
    headers = {STATUS_CODE: "201", **answer.headers, **own_headers()}
    if subject is not None:
        await link.client.publish(subject, answer.document, headers=headers)


async def reply_problem(link: Link, subject: str | None, error: StrettoError) -> None:
    """Publish the problem document, or as much of it as the server takes."""
    if subject is not None:
        documents = map(orjson.dumps, _problems(error))
        # Without any of them, the status in the headers still says the outcome.
        headers = _problem_headers(error)
        body = next((each for each in documents if link.may_send(len(each), headers)), b"")
        await link.client.publish(subject, body, headers=headers)


async def dead_letter(
    link: Link, deployment: Deployment, message: Msg, error: StrettoError
) -> None:
    """Store the problem document, with as much of the command as server and stream take.

    A stream that was deleted is made again. Raises `DeadLetterLost` if the letter is not stored.
    """
    try:
        try:
            await _store(link, deployment, message, error)
        except NoStreamResponseError:
            await provide_dead_stream(link, deployment)
            await _store(link, deployment, message, error)
    except (*NATS_ERRORS, UnfitStream) as cause:
        raise DeadLetterLost(f"no dead letter in {deployment.dead_stream}: {cause}") from cause


async def _store(link: Link, deployment: Deployment, message: Msg, error: StrettoError) -> None:
    sequence, sent_at = message.metadata.sequence.stream, message.metadata.timestamp
    bare = {"sequence": sequence}
    # The headers name key and owner, by which an operator finds the client.
    named = {**bare, "headers": message.headers or {}}
    whole = {**named, "body": b64encode(message.data).decode()}
    # A stream that was made again counts from 1 again; its letters are no duplicates.
    message_id = f"{deployment.command_stream}/{sent_at.isoformat()}/{sequence}"
    headers = {**_problem_headers(error), Header.MSG_ID.value: message_id}
    long, short = _problems(error)
    for document, command in (
        (long, whole),
        (long, named),
        (short, named),
        (long, bare),
        (short, bare),
    ):
        # The NATS client may use an enum of its own for a header's name.
        letter = orjson.dumps({**document, "command": command}, option=orjson.OPT_NON_STR_KEYS)
        if not link.may_send(len(letter), headers):
            continue
        try:
            await link.jetstream.publish(deployment.dead_subject, letter, headers=headers)
        except APIError as refused:
            if refused.err_code not in TOO_LARGE:
                raise
        else:
            return
    if not link.may_send(len(letter), headers):
        link.require_known_limit()
    raise MaxPayloadError


def _problems(error: StrettoError) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the problem document, and one that quotes nothing of the command."""
    document = problem(error)
    return document, problem(RequestInvalid([])) if isinstance(error, RequestInvalid) else document


def _problem_headers(error: StrettoError) -> dict[str, str]:
    status = str(STATUS[error.code])
    return {"Content-Type": PROBLEM_CONTENT_TYPE, STATUS_CODE: status, **own_headers()}
