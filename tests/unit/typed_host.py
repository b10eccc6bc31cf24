"""A host's code with public names alone, which `test_public_names.py` has mypy check strictly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import stretto

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID


async def count(
    connection: stretto.Connection,
    created: Sequence[tuple[stretto.CreatedGroup, stretto.NewGroup]],
) -> None:
    """Be an `on_create`."""
    async with connection.transaction():
        await connection.execute("SELECT $1", str(created[0][0].group_id))


async def allow(new_group: stretto.NewGroup) -> None:
    """Be an `authorize`."""
    if new_group.metadata is not None and new_group.metadata.value.get("seats") == 0:
        raise stretto.GroupRejected("no_seats", "No seat is left.")


def observe(observation: stretto.Observation) -> None:
    """Be an observer."""
    match observation:
        case stretto.WriteFailed() | stretto.UpkeepFailed():
            CAUSES.append(f"{observation.kind}: {observation.cause}")
        case stretto.TargetFailed(actor, cause):
            CAUSES.append(f"{actor}: {cause}")
        case stretto.ActorCrashed(_, error):
            CAUSES.append(repr(error))
        case _:
            stretto.log_observation(observation)


class Bus:
    """Be a bus."""

    async def publish(self, events: Sequence[stretto.CommittedEvent]) -> Mapping[UUID, str]:
        """Refuse one kind of events."""
        if not events:
            raise stretto.BusUnavailable
        return {event.event_id: "too large" for event in events if len(event.envelope) > 1000}


async def greet(event: stretto.CommittedEvent) -> None:
    """Be a callback of `on_event`."""
    GREETED.extend(event.recipients)


async def use(component: stretto.Handle, body: bytes) -> stretto.Problem | None:
    """Use everything that a host calls."""
    end = await component.on_event(greet)
    try:
        answer: stretto.Answer = await component.create_from("alice", "k", body)
        report: stretto.AttemptReport = await component.attempt("alice", "k")
        group: stretto.Group = await component.group(answer.group.group_id)
        members: Sequence[stretto.Member] = await component.members(group.group_id)
        if group.metadata is not None and group.metadata.value.get("seats") == 0:
            return None
        if report.status is stretto.AttemptStatus.SUCCEEDED and not answer.status.is_replay:
            GREETED.extend(member.user_id for member in members)
    except stretto.RequestInvalid as error:
        CAUSES.extend(each.detail for each in error.errors)
        return stretto.problem_of(error)
    except stretto.StrettoError as error:
        return stretto.problem_of(error) if error.retry is stretto.Retry.NEVER else None
    finally:
        await end()
    return None


async def main(pool: stretto.Pool) -> None:
    """Open a component with all options."""
    async with stretto.open_component(
        pool=pool,
        settings=SETTINGS,
        on_create=HOOK,
        authorize=AUTHORIZE,
        observe=OBSERVE,
        bus=BUS,
    ) as component:
        await use(component, b"{}")


CAUSES: Final[list[str]] = []
GREETED: Final[list[str]] = []
HOOK: Final[stretto.OnCreate] = count
AUTHORIZE: Final[stretto.Authorize] = allow
OBSERVE: Final[stretto.Observer] = observe
BUS: Final[stretto.EventBus] = Bus()
CALLBACK: Final[stretto.OnEvent] = greet
SETTINGS: Final = stretto.ComponentSettings(
    creator=stretto.CreatorSettings(rate_limit=10),
    hub=stretto.HubSettings(),
    nats=stretto.NatsSettings(),
    relay=stretto.RelaySettings(),
    retention=stretto.Retention(),
    webhook=stretto.WebhookSettings(),
)
OPTIONS: Final[stretto.AppOptions] = {
    "tokens": stretto.TokenSettings(),
    "streams": stretto.StreamSettings(),
    "settings": SETTINGS,
    "bus": BUS,
    "observe": OBSERVE,
}
