"""How the parts of a component fit together, without a database."""

from __future__ import annotations

from typing import Any, cast

from stretto.assembly.parts import _live_readers
from stretto.domain import UserId
from stretto.events.scan import Ask
from stretto.events.settings import HubSettings
from support.log_events import place


class _Anything:
    """Stands for what is kept and not used."""

    is_shared = False

    def __getattr__(self, name: str) -> Any:
        return _Anything()

    def __call__(self, *_: object) -> None: ...


class _Settings:
    hub = HubSettings()


class _Inputs:
    database = _Anything()
    runner = None
    tracing = None

    def observe(self, _: object) -> None: ...


async def test_users_take_turns_to_ask_for_what_they_have_missed() -> None:
    """One with many sessions does not keep another waiting; without shares, the first come first."""
    live = _live_readers(cast("Any", _Inputs()), cast("Any", _Settings()), None)
    alice, bob = UserId("alice"), UserId("bob")
    for user in (alice, alice, alice, bob):
        live.history.ask(Ask(user, place(1)))
    asks = await live.history.take(2)
    assert [alice, bob] == [each.message.user for each in asks]
    live.history.close()
