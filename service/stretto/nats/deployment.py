"""Deployment: the names of our streams on NATS, and what separates them from other deployments.

Streams, consumers and subjects are global to a NATS account. All our names begin with the
deployment's prefix, and every stream carries a mark: the database that it belongs to. A stream with
another mark, or without one, is neither read nor written (G11). After a restore or an upgrade of
the database only an operator can know that such a stream is ours, and marks it by `adopt`. A stream
that fewer or more servers keep than the setting says is used, and reported until `resize`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nats.errors import Error
from nats.js.errors import APIError, NotFoundError

from stretto.domain import EVENT_TYPE
from stretto.nats.requests import answered
from stretto.observations import StreamDiffers
from stretto.start_errors import ConfigurationError
from stretto.targets.settings import BUS_PREFIX_PATTERN

if TYPE_CHECKING:
    from nats.js.api import StreamConfig, StreamInfo

    from stretto.nats.connection import Link

# The key of a stream's metadata, which NATS keeps from 2.10 on.
MARK: Final = "stretto-database"
# JetStream's error code if a stream of this name exists with another configuration.
_NAME_IN_USE: Final = 10058
# ... if another stream takes one of its subjects.
_SUBJECTS_TAKEN: Final = 10065
# ... if there are fewer servers than replicas: in the cluster, or because there is none.
_TOO_FEW_SERVERS: Final = (10005, 10074)


class UnfitStream(ConfigurationError):
    """A stream with one of our names cannot be used as it is."""


class ForeignStream(UnfitStream):
    """It does not carry our mark."""


class SubjectsMissing(UnfitStream):
    """It does not take all that we publish: what it lacks would be tried for ever."""


class SubjectsTaken(UnfitStream):
    """It cannot be made: another stream takes some of its subjects."""


class Unacknowledging(UnfitStream):
    """It acknowledges nothing: what we publish would be sent again for ever."""


class TooFewServers(Error):
    """NATS has fewer servers than a stream is to have replicas."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One database's names on NATS; raises `ConfigurationError` for a prefix that is no token."""

    prefix: str
    database: str
    """Identifies the database, and stays the same after a failover."""
    replicas: int = 1
    """How many servers keep each stream."""

    def __post_init__(self) -> None:
        if re.fullmatch(BUS_PREFIX_PATTERN, self.prefix) is None:
            message = "the prefix of NATS names must be 1 to 32 letters, digits, - or _"
            raise ConfigurationError(message)

    @property
    def event_stream(self) -> str:
        """The stream of events."""
        return f"{self.prefix}_events"

    @property
    def event_subject(self) -> str:
        """Every creation's event is published here once."""
        return self.subject_of(EVENT_TYPE)

    def subject_of(self, event_type: str) -> str:
        """Every event of this type is published here once."""
        return f"{self.prefix}.events.{event_type.replace('.', '_')}"

    def recipients_subject_of(self, event_type: str) -> str:
        """Further recipients of a large group's event, beyond those of its first message."""
        return f"{self.prefix}.recipients.{event_type.replace('.', '_')}"

    @property
    def event_subjects(self) -> list[str]:
        """The subjects of the stream of events."""
        return [f"{self.prefix}.events.>", f"{self.prefix}.recipients.>"]

    @property
    def command_stream(self) -> str:
        """The work queue of commands."""
        return f"{self.prefix}_commands"

    @property
    def command_subject(self) -> str:
        """Commands are published here."""
        return f"{self.prefix}.commands.create_group"

    @property
    def command_consumer(self) -> str:
        """The durable consumer that all replicas share."""
        return f"{self.prefix}_create_group"

    @property
    def dead_stream(self) -> str:
        """The stream of commands that can never succeed."""
        return f"{self.prefix}_dead_letters"

    @property
    def dead_subject(self) -> str:
        """Dead letters are published here."""
        return f"{self.prefix}.dead_letters.create_group"

    @property
    def reply_subjects(self) -> str:
        """Outcomes of commands go to inboxes, or to subjects below this one."""
        return f"{self.prefix}.replies"

    @property
    def streams(self) -> dict[str, list[str]]:
        """The subjects of each stream, by its name."""
        return {
            self.event_stream: self.event_subjects,
            self.command_stream: [self.command_subject],
            self.dead_stream: [self.dead_subject],
        }


async def provide_stream(link: Link, deployment: Deployment, config: StreamConfig) -> StreamInfo:
    """Return the stream of that name. Create it if it is missing; leave an existing one unchanged.

    Raises an `UnfitStream`.
    """
    assert config.name is not None
    name = config.name
    info = await _info(link, name)
    if info is None:
        ours = replace(
            config, metadata={MARK: deployment.database}, num_replicas=deployment.replicas
        )
        try:
            # Another replica may create it at the same time: the server accepts equal
            # configurations.
            info = await answered(lambda: link.jetstream.add_stream(ours))
        except APIError as error:
            if error.err_code == _SUBJECTS_TAKEN:
                raise _taken(config) from error
            if error.err_code != _NAME_IN_USE:
                raise _in_words(error, deployment) from error
            # Another deployment, or another version of this one, was first.
            info = await answered(lambda: link.jetstream.stream_info(name))
    _require_fit(info, deployment)
    if info.config.num_replicas != deployment.replicas:
        link.observe(StreamDiffers(name, info.config.num_replicas or 1, deployment.replicas))
    return info


async def require_own_streams(link: Link, deployment: Deployment) -> None:
    """Raise an `UnfitStream` for a stream with one of our names; a missing one is no error."""
    for info in (await found_streams(link, deployment)).values():
        _require_fit(info, deployment)


async def found_streams(link: Link, deployment: Deployment) -> dict[str, StreamInfo]:
    """Return the streams with our names, whosever they are."""
    infos = {name: await _info(link, name) for name in deployment.streams}
    return {name: info for name, info in infos.items() if info is not None}


async def adopt(link: Link, deployment: Deployment) -> list[str]:
    """Mark all streams with our names as ours; return the names of those that were not."""
    adopted = []
    for name, info in (await found_streams(link, deployment)).items():
        if _mark(info) != deployment.database:
            metadata = {**(info.config.metadata or {}), MARK: deployment.database}
            await link.jetstream.update_stream(replace(info.config, metadata=metadata))
            adopted.append(name)
    return adopted


async def resize(link: Link, deployment: Deployment) -> list[str]:
    """Have each of our streams kept by as many servers as the setting says; return those changed.

    Raises `ForeignStream` or `TooFewServers`. The service may go on meanwhile.
    """
    resized = []
    for name, info in (await found_streams(link, deployment)).items():
        _require_mark(info, deployment)
        if info.config.num_replicas != deployment.replicas:
            config = replace(info.config, num_replicas=deployment.replicas)
            try:
                await link.jetstream.update_stream(config)
            except APIError as error:
                raise _in_words(error, deployment) from error
            resized.append(name)
    return resized


async def _info(link: Link, name: str) -> StreamInfo | None:
    try:
        return await answered(lambda: link.jetstream.stream_info(name))
    except NotFoundError:
        return None


def _in_words(error: APIError, deployment: Deployment) -> Error:
    if error.err_code not in _TOO_FEW_SERVERS:
        return error
    return TooFewServers(
        f"NATS cannot keep a stream on {deployment.replicas} servers ({error.description}): set"
        " STRETTO_NATS_REPLICAS to at most the number of servers of its cluster"
    )


def _mark(info: StreamInfo) -> str | None:
    return (info.config.metadata or {}).get(MARK)


def _taken(config: StreamConfig) -> SubjectsTaken:
    return SubjectsTaken(
        f"the stream {config.name} cannot be made: another one takes some of"
        f" {', '.join(config.subjects or [])}; stretto bus names it. Delete that one, or set"
        " STRETTO_NATS_PREFIX to a name whose subjects no stream takes"
    )


def whose(info: StreamInfo, deployment: Deployment) -> str:
    """Return in words to which database a stream belongs."""
    mark = _mark(info)
    if mark is None:
        return "does not say whose it is"
    return "ours" if mark == deployment.database else f"belongs to the database {mark}"


def missing_subjects(info: StreamInfo, deployment: Deployment) -> list[str]:
    """Return those of a stream's subjects that it does not take."""
    taken = info.config.subjects or []
    wanted = deployment.streams[info.config.name or ""]
    return [each for each in wanted if not any(_takes(pattern, each) for pattern in taken)]


def _takes(pattern: str, subject: str) -> bool:
    """Whether a stream's subject takes all that one of ours does; `*` is any token, `>` all that follow."""
    names = subject.split(".")
    for number, name in enumerate(pattern.split(".")):
        if name == ">":
            return number < len(names)
        if number >= len(names) or names[number] == ">" or name not in ("*", names[number]):
            return False
    return pattern.count(".") == subject.count(".")


def _require_fit(info: StreamInfo, deployment: Deployment) -> None:
    """Raise `ForeignStream`, `Unacknowledging` or `SubjectsMissing`."""
    _require_mark(info, deployment)
    if info.config.no_ack:
        message = (
            f"the stream {info.config.name} acknowledges nothing, so that what we publish would be"
            " sent again for ever: set its no_ack to false (nats stream edit --ack)"
        )
        raise Unacknowledging(message)
    if missing := missing_subjects(info, deployment):
        message = (
            f"the stream {info.config.name} does not take {', '.join(missing)}, which we publish: add"
            " that to its subjects (nats stream edit --subjects)"
        )
        raise SubjectsMissing(message)


def _require_mark(info: StreamInfo, deployment: Deployment) -> None:
    if _mark(info) == deployment.database:
        return
    message = (
        f"the stream {info.config.name} {whose(info, deployment)} (ours is {deployment.database}):"
        " set STRETTO_NATS_PREFIX to a name that no other deployment has. If the stream is ours, after"
        " a restore, an upgrade of PostgreSQL, or because you made it, stop all instances and run"
        " stretto bus --adopt"
    )
    raise ForeignStream(message)
