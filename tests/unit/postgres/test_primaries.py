"""Which connections are cut once another one has led to a newer primary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import asyncpg
import pytest

from stretto.postgres.primaries import (
    REFUSED_AGAIN_SECONDS,
    REFUSED_SECONDS,
    UNKNOWN,
    OpenConnections,
    Primary,
    replaced_last,
)
from stretto.store_errors import Unreachable
from support.clock import Clock
from support.opened_connection import Opened

if TYPE_CHECKING:
    from stretto.postgres.driver_connection import DriverConnection
    from stretto.postgres.host_failures import Host

OLDEST, OLD, NEW = (Primary("7", f"0000000{number}") for number in "89A")
OLD_HOST: Final = ("10.0.0.1", 5432)
NEW_HOST: Final = ("10.0.0.2", 5432)
STANDBY: Final = Unreachable("read-only")


def add(connections: OpenConnections, primary: Primary) -> Opened:
    """Add a new connection to a primary."""
    opened = Opened()
    host = NEW_HOST if primary == NEW else OLD_HOST
    connections.add(cast("DriverConnection", opened), primary, host)
    return opened


def test_a_newer_primary_has_all_connections_to_older_ones_cut() -> None:
    """Each of them, and no other."""
    connections = OpenConnections()
    old = [add(connections, OLD) for _ in range(2)]
    new = [add(connections, NEW) for _ in range(2)]
    assert [True, True, False, False] == [each.is_cut for each in (*old, *new)]


def test_an_older_primary_gets_no_connection_while_one_to_a_newer_lives() -> None:
    """Twin: some time after that is lost, the older one may be all that is left, as after a restore."""
    clock = Clock()
    connections = OpenConnections(clock)
    new = add(connections, NEW)
    with pytest.raises(Unreachable, match="has replaced this server"):
        add(connections, OLD)
    assert not new.is_cut
    new.terminate()
    assert REFUSED_SECONDS == refusals(connections, clock, 2 * REFUSED_SECONDS)
    assert not add(connections, OLD).is_cut


def refusals(connections: OpenConnections, clock: Clock, seconds: float) -> int:
    """Try the older primary each second, for so long; return how many connections were refused."""
    refused = 0
    end = clock.now + seconds
    while clock.now < end:
        try:
            add(connections, OLD)
        except Unreachable:
            refused += 1
        clock.now += 1.0
    return refused


def test_an_older_primary_serves_again_where_nothing_leads_to_the_newer_one() -> None:
    """It has frozen: it keeps its connections, and nobody has asked over those that are idle."""
    clock = Clock()
    connections = OpenConnections(clock)
    new = add(connections, NEW)
    assert REFUSED_SECONDS == refusals(connections, clock, REFUSED_SECONDS)
    assert not new.is_cut
    assert not add(connections, OLD).is_cut
    assert new.is_cut


def test_a_balancer_that_leads_to_the_newer_primary_too_has_it_stay() -> None:
    """Each connection there begins the time anew; so does a pause in which none was wanted."""
    clock = Clock()
    connections = OpenConnections(clock)
    kept = [add(connections, NEW)]
    for is_led_there in (True, False):
        for _ in range(3):
            assert 4 == refusals(connections, clock, 4)
            if is_led_there:
                kept.append(add(connections, NEW))
            else:
                clock.now += REFUSED_AGAIN_SECONDS
    assert not any(each.is_cut for each in kept)


def test_a_newer_primary_that_answers_keeps_the_older_one_out() -> None:
    """However long no new connection leads there: its connections are asked, idle ones too."""
    clock = Clock()
    connections = OpenConnections(clock)
    frozen, answering = add(connections, NEW), add(connections, NEW)
    answering.clock = clock
    seconds = 4 * REFUSED_SECONDS
    assert seconds == refusals(connections, clock, seconds)
    answering.clock = None
    assert REFUSED_SECONDS - 1 == refusals(connections, clock, seconds)
    assert frozen.is_cut
    assert answering.is_cut


def test_what_a_newer_primary_has_answered_before_it_was_lost_shows_when_it_lived() -> None:
    """Its last connection may have been opened long ago."""
    clock = Clock()
    connections = OpenConnections(clock)
    new = add(connections, NEW)
    clock.now += 2 * REFUSED_SECONDS
    new.answered_at = clock.now
    new.terminate()
    del new
    assert REFUSED_SECONDS == refusals(connections, clock, 2 * REFUSED_SECONDS)


def server_error(state: str) -> asyncpg.PostgresError:
    """Return the error that the driver makes of a server's message."""
    error: asyncpg.PostgresError = asyncpg.PostgresError.new({"S": "FATAL", "C": state, "M": "no"})
    return error


@pytest.mark.parametrize(
    ("is_living", "error"),
    [
        *((True, server_error(state)) for state in ("53300", "28P01", "28000", "3D000", "55000")),
        *((False, server_error(state)) for state in ("57P01", "57P03", "25006", "08006", "XX000")),
        (False, ConnectionRefusedError()),
        (False, TimeoutError()),
        (False, STANDBY),
    ],
    ids=str,
)
def test_a_newer_primary_lives_while_it_refuses_connections_itself(
    is_living: bool, error: Exception
) -> None:
    """It is full, or has other passwords. Nothing of ours is connected to it any more."""
    clock = Clock()
    connections = OpenConnections(clock)
    connections.note_failure(NEW_HOST, error)
    old = add(connections, OLD)
    new = add(connections, NEW)
    assert old.is_cut
    new.terminate()
    refused = 0
    for _ in range(12):
        connections.note_failure(NEW_HOST, error)
        refused += refusals(connections, clock, 1)
    assert (12 if is_living else REFUSED_SECONDS) == refused


@pytest.mark.parametrize("error", [ConnectionRefusedError(), STANDBY], ids=str)
def test_what_comes_after_a_newer_primary_that_was_stopped_does_not_speak_for_it(
    error: Exception,
) -> None:
    """At its host another server is full: its own standby by now, or one of another system."""
    clock = Clock()
    connections = OpenConnections(clock)
    add(connections, NEW).terminate()
    connections.note_failure(NEW_HOST, error)
    refused = 0
    for _ in range(12):
        connections.note_failure(NEW_HOST, server_error("53300"))
        refused += refusals(connections, clock, 1)
    assert refused == REFUSED_SECONDS


def test_an_address_that_leads_to_the_older_primary_again_does_not_speak_for_the_newer() -> None:
    """It is full now and then: that is the older one, to which the address has led meanwhile."""
    clock = Clock()
    connections = OpenConnections(clock)
    connections.add(cast("DriverConnection", new := Opened()), NEW, OLD_HOST)
    new.terminate()
    refused = 0
    for _ in range(12):
        refused += refusals(connections, clock, 1)
        connections.note_failure(OLD_HOST, server_error("53300"))
    assert refused == REFUSED_SECONDS


def test_an_older_primary_that_refuses_connections_keeps_none_out() -> None:
    """Its refusals say nothing of the newer one."""
    connections = OpenConnections()
    add(connections, OLD)
    connections.note_failure(OLD_HOST, server_error("53300"))
    assert not add(connections, NEW).is_cut


def test_of_several_hosts_those_are_last_that_another_one_has_replaced() -> None:
    """The others keep their order: one of another system has replaced none."""
    foreign = Primary("8", "0000000B")
    primaries: dict[Host, Primary] = {
        ("a", 1): OLD,
        ("b", 1): foreign,
        ("c", 1): NEW,
        ("d", 1): NEW,
    }
    order = replaced_last(primaries)
    assert [("b", 1), ("c", 1), ("d", 1), ("a", 1)] == order


def test_a_newer_primary_that_was_seen_is_missed_while_an_older_one_serves() -> None:
    """The newest of them; one of another system, or an older one, is none."""
    clock = Clock()
    connections = OpenConnections(clock)
    for primary in (Primary("8", "0000000C"), OLDEST, NEW):
        add(connections, primary).terminate()
    assert connections.newer_seen is None
    clock.now += REFUSED_SECONDS
    old = add(connections, OLD)
    assert NEW == connections.newer_seen
    assert connections.are_replaced_by(NEW)
    assert not any(map(connections.are_replaced_by, (OLD, OLDEST, UNKNOWN)))
    old.terminate()
    assert connections.newer_seen is None


def test_what_was_cut_just_now_leads_to_no_primary() -> None:
    """Its end is noted in the next turn of the event loop."""
    clock = Clock()
    connections = OpenConnections(clock)
    add(connections, NEW).terminate()
    clock.now += REFUSED_SECONDS
    old = add(connections, OLD)
    assert NEW == connections.newer_seen
    old.is_cut = True
    assert connections.newer_seen is None
    assert not connections.are_replaced_by(NEW)


def test_each_connection_that_ends_is_a_loss() -> None:
    """A host is trusted no longer then."""
    connections = OpenConnections()
    opened = [add(connections, NEW) for _ in range(3)]
    assert 0 == connections.losses
    opened[0].terminate()
    opened[1].terminate()
    assert 2 == connections.losses


@pytest.mark.parametrize("other", [OLD, Primary("8", "0000000A"), UNKNOWN])
def test_another_start_another_system_or_a_pooler_cuts_nothing(other: Primary) -> None:
    """None of them has replaced the primary, in either order."""
    connections = OpenConnections()
    opened = [add(connections, each) for each in (OLD, other, OLD)]
    assert not any(each.is_cut for each in opened)


def test_all_are_cut_where_the_primary_takes_no_writes() -> None:
    """Whatever they lead to."""
    connections = OpenConnections()
    opened = [add(connections, each) for each in (OLD, UNKNOWN)]
    connections.cut()
    assert all(each.is_cut for each in opened)
