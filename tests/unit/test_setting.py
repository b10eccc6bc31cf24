"""What a host sets is held against the same bounds as what an operator sets."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from stretto.assembly.settings import ComponentSettings
from stretto.creation.settings import CreatorSettings
from stretto.events.settings import HubSettings
from stretto.http.settings import StreamSettings
from stretto.http.tokens.settings import TokenSettings
from stretto.postgres.settings import Retention
from stretto.setting import require_settings, setting
from stretto.start_errors import ConfigurationError
from stretto.targets.settings import RelaySettings
from stretto.webhook.rules import WebhookSettings

GOOD = ComponentSettings()


@dataclass(frozen=True)
class _Inner:
    seconds: float = 1.0


@dataclass(frozen=True)
class _Outer:
    rows_max: int = 1
    text: str = ""
    rate: float = setting(0.0, "a rate", ge=0)
    inner: _Inner = field(default_factory=_Inner)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("ComponentSettings.writers is 0: it must be from 1 to 32", replace(GOOD, writers=0)),
        ("ComponentSettings.writers is 33: it must be from 1 to 32", replace(GOOD, writers=33)),
        ("mailbox_max is -1: it must be from 1 to 100000", replace(GOOD, mailbox_max=-1)),
        ("nats_prefix is 'a b': it must be text that", replace(GOOD, nats_prefix="a b")),
        ("db_schema is 'a\\\\n': it must be text that", replace(GOOD, db_schema="a\n")),
        ("RelaySettings.batch_max is 0: it must be 1 or more", RelaySettings(batch_max=0)),
        ("poll_seconds is 0.0: it must be above 0", RelaySettings(poll_seconds=0.0)),
        ("gather_seconds is inf: it must be above 0", RelaySettings(gather_seconds=math.inf)),
        ("relay_lease_seconds is 0.5: it", RelaySettings(relay_lease_seconds=0.5)),
        ("rate_limit is -1: it must be 0 or more", CreatorSettings(rate_limit=-1)),
        ("rate_limit is nan: it must be 0 or more", CreatorSettings(rate_limit=math.nan)),
        ("rate_limit is inf: it must be 0 or more", CreatorSettings(rate_limit=math.inf)),
        ("lease_seconds is 0: it must be from 0.1 to 3600", CreatorSettings(lease_seconds=0)),
        ("lease_seconds is nan: it must be", CreatorSettings(lease_seconds=math.nan)),
        ("outcomes_max is 0: it must be 1 or more", CreatorSettings(outcomes_max=0)),
        ("stop_seconds is nan: it must be above 0", CreatorSettings(stop_seconds=math.nan)),
        ("HubSettings.sessions_max is 0: it must be", HubSettings(sessions_max=0)),
        ("Retention.retention_days is 0: it must be", Retention(retention_days=0)),
        ("heartbeat_seconds is inf: it must be", StreamSettings(heartbeat_seconds=math.inf)),
    ],
)
def test_what_is_out_of_bounds_is_refused(words: str, part: Any) -> None:
    """By its name, and with what is allowed; also deep within the component's settings."""
    with pytest.raises(ConfigurationError, match=words):
        require_settings(part)
    for name, value in (("relay", part), ("creator", part), ("hub", part), ("retention", part)):
        if isinstance(value, type(getattr(GOOD, name))):
            with pytest.raises(ConfigurationError, match=words):
                require_settings(replace(GOOD, **{name: value}))


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("writers must be int, not <class 'str'>", {"writers": "2"}),
        ("writers must be int, not <class 'float'>", {"writers": 2.0}),
        ("writers must be int, not <class 'bool'>", {"writers": True}),
        ("relay must be stretto.targets.settings.RelaySettings, not", {"relay": None}),
        ("relay must be .*RelaySettings, not .*HubSettings", {"relay": HubSettings()}),
        ("nats_url must be str, not <class 'NoneType'>", {"nats_url": None}),
    ],
)
def test_a_value_of_another_kind_is_refused(words: str, part: dict[str, Any]) -> None:
    """A number as text would be compared, or counted with, much later."""
    with pytest.raises(TypeError, match=f"ComponentSettings.{words}"):
        require_settings(replace(GOOD, **part))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("StreamSettings.origins", StreamSettings(origins="https://chat.example")),  # type: ignore[arg-type]
        ("StreamSettings.origins", StreamSettings(origins=frozenset({1}))),  # type: ignore[arg-type]
        ("WebhookSettings.webhook_secret", WebhookSettings(webhook_secret=b"hidden")),  # type: ignore[arg-type]
        ("WebhookSettings.webhook_secret", WebhookSettings(webhook_secret=("hidden",))),  # type: ignore[arg-type]
        ("TokenSettings.jwt_secret", TokenSettings(jwt_secret=b"hidden")),  # type: ignore[arg-type]
    ],
)
def test_one_text_where_several_are_meant_is_refused(name: str, part: Any) -> None:
    """Each of its characters would be one of them; a secret is not shown."""
    with pytest.raises(TypeError, match=f"{name} must be ") as refusal:
        require_settings(part)
    assert "hidden" not in str(refusal.value)


@pytest.mark.parametrize(
    "part",
    [
        GOOD,
        replace(GOOD, relay=RelaySettings(poll_seconds=3600, gather_seconds=1)),
        replace(GOOD, creator=CreatorSettings(lease_seconds=0.1, rate_limit=0.001)),
        replace(GOOD, hub=HubSettings(sessions_max=1_000_000)),
        StreamSettings(origins=frozenset({"*"}), heartbeat_seconds=1),
        WebhookSettings(webhook_secret=(b"one", b"two")),
        TokenSettings(jwt_secret="a secret"),
    ],
)
def test_what_can_work_is_taken(part: Any) -> None:
    """The defaults, the ends of the bounds, and whole seconds as an `int`."""
    require_settings(part)


@pytest.mark.parametrize(
    "part", [_Outer(rows_max=0), _Outer(rate=-0.1), _Outer(inner=_Inner(seconds=0.0))]
)
def test_a_number_that_declares_no_bounds_has_some(part: _Outer) -> None:
    """A count begins at one, a duration above zero: a new field cannot forget it."""
    require_settings(_Outer())
    with pytest.raises(ConfigurationError):
        require_settings(part)
