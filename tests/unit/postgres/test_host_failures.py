"""Why none of a database's hosts gives a connection."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest
from asyncpg.exceptions import TargetServerAttributeNotMatched

from stretto.postgres.host_failures import unreachable
from stretto.postgres.pooler import ADD_PARAMETER
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from stretto.postgres.host_failures import Host

DEAD: Final = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
FULL: Final = asyncpg.TooManyConnectionsError("too many clients")
MISSING: Final = asyncpg.InvalidCatalogNameError("no such database")
FOREIGN: Final = asyncpg.ProtocolViolationError("unsupported startup parameter")
STANDBY: Final = Unreachable("read-only")
STANDBY.__cause__ = TargetServerAttributeNotMatched("no")
ONE: Final = ("10.0.0.1", 5432)
OTHER: Final = ("10.0.0.2", 5432)


def failed(*failures: tuple[Host, Exception], is_pooled: bool = False) -> Unreachable:
    """Return what is said of failures, the same in either order."""
    first, second = (
        unreachable(dict(order), is_pooled=is_pooled) for order in (failures, failures[::-1])
    )
    assert str(first) == str(second)
    assert first.__cause__ is second.__cause__
    return first


@pytest.mark.parametrize(
    ("words", "own", "cause"),
    [
        ("too many clients (SQLSTATE 53300)", FULL, FULL),
        # A host that may come is waited for.
        ("no such database (SQLSTATE 3D000)", MISSING, DEAD),
        ("read-only", STANDBY, STANDBY.__cause__),
        (f"unsupported startup parameter (SQLSTATE 08P01); {ADD_PARAMETER}", FOREIGN, DEAD),
    ],
)
def test_a_dead_host_hides_no_cause_of_another(
    words: str, own: Exception, cause: Exception
) -> None:
    """Each is named with its own, whichever was tried first."""
    error = failed((ONE, DEAD), (OTHER, own))
    assert f"10.0.0.1:5432: Connection refused; 10.0.0.2:5432: {words}" == str(error)
    assert cause is error.__cause__


def test_the_primarys_own_answer_counts_more_than_that_of_a_standby() -> None:
    """What an operator is advised comes from it."""
    assert FULL is failed((ONE, FULL), (OTHER, STANDBY)).__cause__
    assert STANDBY.__cause__ is failed((ONE, STANDBY), (OTHER, MISSING)).__cause__


def test_hosts_with_one_cause_have_it_once() -> None:
    """Without their names where it is the cause of all."""
    assert "Connection refused" == str(failed((ONE, DEAD), (OTHER, DEAD)))
    hosts: tuple[Host, ...] = (("/run/postgresql", 5433), ("::1", 5432))
    error = failed((ONE, FULL), *((host, DEAD) for host in hosts))
    assert (
        "/run/postgresql:5433, [::1]:5432: Connection refused;"
        " 10.0.0.1:5432: too many clients (SQLSTATE 53300)"
    ) == str(error)


def test_a_single_host_is_not_named() -> None:
    """The driver may have taken it from its environment."""
    assert "Connection refused" == str(failed(((None, None), DEAD)))


def test_a_url_that_has_a_poolers_parameter_is_not_advised_to_have_it() -> None:
    """What the pooler says of its own server may pass."""
    error = failed((ONE, FOREIGN), (OTHER, MISSING), is_pooled=True)
    assert ADD_PARAMETER not in str(error)
    assert FOREIGN is error.__cause__
