"""Which connections are cut once another one has led to a newer primary."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from stretto.postgres.primaries import UNKNOWN, OpenConnections, Primary
from stretto.store_errors import Unreachable

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
