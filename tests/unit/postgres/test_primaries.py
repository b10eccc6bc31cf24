"""Which connections are cut once another one has led to a newer primary."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from stretto.postgres.primaries import (
    REFUSED_AGAIN_SECONDS,
    REFUSED_SECONDS,
    UNKNOWN,
    OpenConnections,
    Primary,
)
from stretto.store_errors import Unreachable
from support.clock import Clock

if TYPE_CHECKING:
    from stretto.postgres.driver_connection import Connection

OLD, NEW = Primary("7", "00000009"), Primary("7", "0000000A")


class Opened:
    """Stands for a connection of the driver's."""

    def __init__(self) -> None:
        self.is_cut = False

    def terminate(self) -> None:
        self.is_cut = True

    def is_closed(self) -> bool:
        return self.is_cut


def add(connections: OpenConnections, primary: Primary) -> Opened:
    """Add a new connection to a primary."""
    opened = Opened()
    connections.add(cast("Connection", opened), primary)
    return opened


def test_a_newer_primary_has_all_connections_to_older_ones_cut() -> None:
    """Each of them, and no other."""
    connections = OpenConnections()
    old = [add(connections, OLD) for _ in range(2)]
    new = [add(connections, NEW) for _ in range(2)]
    assert [True, True, False, False] == [each.is_cut for each in (*old, *new)]


def test_an_older_primary_gets_no_connection_while_one_to_a_newer_lives() -> None:
    """Twin: once that is lost, the older one may be all that is left, as after a restore."""
    connections = OpenConnections()
    new = add(connections, NEW)
    with pytest.raises(Unreachable, match="has replaced this server"):
        add(connections, OLD)
    assert not new.is_cut
    new.terminate()
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
