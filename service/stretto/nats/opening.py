"""Makes the parts that use NATS; imports the NATS client only when they are made."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from stretto.nats.access import NatsSettings
from stretto.observations import BusFailed
from stretto.runtime.runner import Runner
from stretto.start_errors import BusError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from stretto.creation.age import AttemptAge
    from stretto.creation.creator import GroupCreator
    from stretto.nats.commands import CommandConsumer
    from stretto.nats.connection import NatsConnection
    from stretto.nats.publisher import NatsBus
    from stretto.observations import Observation, Observer
    from stretto.telemetry.tracing import Tracing

# How long `stretto bus` waits for NATS.
ANSWER_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Nats:
    """What a process has for NATS: its connection, the bus of events, the commands."""

    connection: NatsConnection
    events: NatsBus
    commands: CommandConsumer


@dataclass(frozen=True, slots=True)
class Bus:
    """Where and how to reach NATS, the prefix of our names there, and the database that we serve."""

    url: str
    prefix: str
    origin: str
    settings: NatsSettings = field(default_factory=NatsSettings)


def make_nats(
    bus: Bus,
    creator: GroupCreator,
    age: AttemptAge,
    observe: Observer,
    tracing: Tracing | None = None,
    *,
    rehearse: Callable[[str], Awaitable[None]],
) -> Nats:
    """Return the parts to run; raises `ConfigurationError` where the client is not installed."""
    # nats-py is an extra: a service without a bus runs without it.
    _require_client()
    from stretto.nats.commands import CommandConsumer  # noqa: PLC0415
    from stretto.nats.connection import NatsConnection  # noqa: PLC0415
    from stretto.nats.deployment import Deployment  # noqa: PLC0415
    from stretto.nats.outage import Outage  # noqa: PLC0415
    from stretto.nats.publisher import NatsBus  # noqa: PLC0415

    deployment = Deployment(bus.prefix, bus.origin, bus.settings.nats_replicas)
    connection = NatsConnection(bus.url, observe, bus.settings)
    return Nats(
        connection,
        NatsBus(connection, deployment),
        CommandConsumer(
            *(connection, deployment, creator, age, observe),
            outage=Outage(rehearse),
            tracing=tracing,
        ),
    )


async def describe_streams(
    bus: Bus, *, is_adopting: bool = False, is_resizing: bool = False
) -> list[str]:
    """Return a line for the database and for each of its streams; first change them if asked to.

    Raises `BusError` if NATS does not answer, `ConfigurationError` if it has no JetStream, too few servers,
    or its client is not installed.
    """
    _require_client()
    from nats.js.errors import ServiceUnavailableError  # noqa: PLC0415

    from stretto.nats.connection import NATS_ERRORS, NatsConnection  # noqa: PLC0415
    from stretto.nats.deployment import (  # noqa: PLC0415
        Deployment,
        TooFewServers,
        adopt,
        found_streams,
        resize,
    )
    from stretto.nats.report import describe, takers  # noqa: PLC0415

    if not bus.url:
        raise ConfigurationError("STRETTO_NATS_URL is not set")
    deployment = Deployment(bus.prefix, bus.origin, bus.settings.nats_replicas)
    observed: list[Observation] = []
    connection = NatsConnection(bus.url, observed.append, bus.settings)
    lines = []
    async with Runner(lambda _: None) as runner:
        runner.start(connection)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                link = await connection.linked()
                if is_adopting:
                    lines.append(f"adopted: {', '.join(await adopt(link, deployment)) or 'none'}")
                if is_resizing:
                    lines.append(f"resized: {', '.join(await resize(link, deployment)) or 'none'}")
                infos = await found_streams(link, deployment)
                taken = await takers(link, deployment, infos)
        except TooFewServers as error:
            raise ConfigurationError(str(error)) from error
        except ServiceUnavailableError as error:
            message = (
                "NATS answers, but without JetStream: start nats-server with --jetstream, or enable"
                " it for this account"
            )
            raise ConfigurationError(message) from error
        except NATS_ERRORS as error:
            causes = [each.cause for each in observed if isinstance(each, BusFailed)]
            cause = causes[-1] if causes else str(error) or "no answer in time"
            message = (
                f"NATS does not answer as it should within {ANSWER_SECONDS:.0f} s ({cause});"
                " is STRETTO_NATS_URL right?"
            )
            raise BusError(message) from error
    return [*lines, f"our database: {bus.origin}", *describe(deployment, infos, taken)]


def _require_client() -> None:
    if find_spec("nats") is None:
        message = "a URL of NATS needs the client of NATS: install stretto[nats]"
        raise ConfigurationError(message)
