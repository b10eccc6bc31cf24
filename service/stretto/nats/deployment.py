"""Deployment: what our streams on NATS are called, and how those of other deployments are kept apart.

Streams, consumers and subjects are global to a NATS account. Every name of ours begins with the
deployment's prefix, and every stream carries a mark: the database that it belongs to. A stream with
another mark, or without one, is neither read nor written (G11). Only an operator can know whether it
is ours all the same, after a restore or an upgrade of the database, and says so by `adopt`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nats.js.errors import APIError, NotFoundError

from stretto.errors import ConfigurationError
from stretto.events.event import BUS_PREFIX_PATTERN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nats.js.api import StreamConfig, StreamInfo

    from stretto.nats.connection import Link

# The key of a stream's metadata, which NATS keeps from 2.10 on.
MARK: Final = "stretto-database"
# JetStream's code for a stream of this name with another configuration.
_NAME_IN_USE: Final = 10058


class ForeignStream(ConfigurationError):
    """A stream of our name is not known to be ours."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One database's place on NATS; raises `ConfigurationError` for a prefix that is no token."""

    prefix: str
    database: str
    """What tells the database from every other one, and stays the same after a failover."""

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
        """Where every event is published, once."""
        return f"{self.prefix}.events.group_created"

    @property
    def recipients_subject(self) -> str:
        """For replicas alone: a large group's further recipients."""
        return f"{self.prefix}.recipients.group_created"

    @property
    def event_subjects(self) -> list[str]:
        """All that the stream of events takes."""
        return [f"{self.prefix}.events.>", f"{self.prefix}.recipients.>"]

    @property
    def command_stream(self) -> str:
        """The work queue of commands."""
        return f"{self.prefix}_commands"

    @property
    def command_subject(self) -> str:
        """Where commands are published."""
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
        """Where they are published."""
        return f"{self.prefix}.dead_letters.create_group"

    @property
    def reply_subjects(self) -> str:
        """Where outcomes of commands may go, besides inboxes: below this."""
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
    """Return the stream of that name, made if there is none: an operator's own stays as it is.

    Raises `ForeignStream`.
    """
    assert config.name is not None
    info = await _info(link, config.name)
    if info is None:
        marked = replace(config, metadata={MARK: deployment.database})
        try:
            # Another replica may make the same one just now: the server takes that for one.
            info = await link.jetstream.add_stream(marked)
        except APIError as error:
            if error.err_code != _NAME_IN_USE:
                raise
            # Another deployment, or another version of ours, was first.
            info = await link.jetstream.stream_info(config.name)
    _require_mark(info, deployment)
    return info


async def require_own_streams(link: Link, deployment: Deployment) -> None:
    """Raise `ForeignStream` where one of our names is taken; a stream may be missing."""
    for name in deployment.streams:
        info = await _info(link, name)
        if info is not None:
            _require_mark(info, deployment)


async def stream_marks(link: Link, deployment: Deployment) -> dict[str, str | None]:
    """Return the mark of each stream that there is, by its name."""
    infos = {name: await _info(link, name) for name in deployment.streams}
    return {name: _mark(info) for name, info in infos.items() if info is not None}


async def adopt(link: Link, deployment: Deployment) -> list[str]:
    """Mark the streams of our names as ours, whosever they were; return those that were not."""
    adopted = []
    for name, mark in (await stream_marks(link, deployment)).items():
        if mark != deployment.database:
            config = (await link.jetstream.stream_info(name)).config
            metadata = {**(config.metadata or {}), MARK: deployment.database}
            await link.jetstream.update_stream(replace(config, metadata=metadata))
            adopted.append(name)
    return adopted


def describe(deployment: Deployment, marks: Mapping[str, str | None]) -> list[str]:
    """Return a line for each stream: its name, its subjects, and whose it is."""
    lines = []
    for name, subjects in deployment.streams.items():
        whose = _whose(marks[name], deployment) if name in marks else "not made yet"
        lines.append(f"{name} ({', '.join(subjects)}): {whose}")
    return lines


async def _info(link: Link, name: str) -> StreamInfo | None:
    try:
        return await link.jetstream.stream_info(name)
    except NotFoundError:
        return None


def _mark(info: StreamInfo) -> str | None:
    return (info.config.metadata or {}).get(MARK)


def _whose(mark: str | None, deployment: Deployment) -> str:
    if mark is None:
        return "does not say whose it is"
    return "ours" if mark == deployment.database else f"belongs to the database {mark}"


def _require_mark(info: StreamInfo, deployment: Deployment) -> None:
    mark = _mark(info)
    if mark == deployment.database:
        return
    message = (
        f"the stream {info.config.name} {_whose(mark, deployment)} (ours is {deployment.database}):"
        " set STRETTO_NATS_PREFIX to a name that no other deployment has. If the stream is ours, after"
        " a restore, an upgrade of PostgreSQL, or because you made it, stop all instances and run"
        " stretto bus --adopt"
    )
    raise ForeignStream(message)
