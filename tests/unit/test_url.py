"""`stretto url` says where it has shown a password."""

from __future__ import annotations

import os
import sys

import pytest

from stretto.commands.url import Server, url

SECRET = "a secret for tests that is long enough"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("STRETTO_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("STRETTO_JWT_SECRET", SECRET)


@pytest.mark.parametrize(
    ("is_said", "server", "given", "on_screen"),
    [
        (True, Server.DATABASE, "postgresql://u:secret@h/d", True),
        (True, Server.DATABASE, "postgresql://u@h/d?password=secret", True),
        (True, Server.NATS, "nats://u:secret@h:4222", True),
        (False, Server.DATABASE, "postgresql://u:secret@h/d", False),
        (False, Server.DATABASE, "postgresql://u@h/d", True),
    ],
)
def test_a_password_on_the_screen_is_named(
    is_said: bool,
    server: Server,
    given: str,
    on_screen: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Programs get the URL alone, and one without a password is no secret."""
    monkeypatch.setenv(f"STRETTO_{server.upper()}_URL", given)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: on_screen)
    url(server)
    written = capsys.readouterr()
    assert f"{given}\n" == written.out
    assert is_said == ("this screen shows a password" in written.err)
    assert "secret" not in written.err
