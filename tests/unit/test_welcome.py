"""What a new operator pastes: it works as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jwt
import pytest

from stretto.assembly.settings import ComponentSettings
from stretto.config import Settings
from stretto.http.tokens.settings import TokenSettings
from stretto.own_secret import token_settings
from stretto.welcome import welcome


@pytest.mark.parametrize("requires_scopes", [True, False])
@pytest.mark.parametrize("shows_token", [True, False])
def test_a_token_is_printed_on_a_terminal_alone(shows_token: bool, requires_scopes: bool) -> None:
    """Elsewhere the text ends in a log; the line to paste makes its own. Both are good for it."""
    tokens = TokenSettings(jwt_secret="s" * 32, jwt_require_scopes=requires_scopes)
    text = welcome(Settings(), 1, tokens, shows_token=shows_token)
    printed = re.search(r"Bearer (ey[\w.-]+)", text)
    assert shows_token == (printed is not None)
    if printed is not None:
        claims = jwt.decode(printed[1], options={"verify_signature": False})
        assert requires_scopes == ("stretto:create" in claims.get("scope", ""))
    assert shows_token != ('"Authorization: Bearer $(' in text)
    assert "listens on http://127.0.0.1:1 (the console: http://127.0.0.1:1/, the API: " in text
    without = welcome(Settings(console="off"), 1, tokens, shows_token=shows_token)
    assert "listens on http://127.0.0.1:1 (the API: " in without


def test_the_line_to_paste_leads_to_an_address_of_ipv6() -> None:
    """In brackets, without which its end would be the port."""
    text = welcome(Settings(host="::1"), 1, TokenSettings(jwt_secret="s" * 32), shows_token=True)
    assert "curl -i http://[::1]:1/v1/groups" in text


@pytest.mark.parametrize("program", ["bin/stretto", "stretto/__main__.py"])
def test_the_printed_command_makes_a_token_in_any_folder(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no folder of the PATH, and the data dir may be relative."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [program, "serve"])
    own = Path(sys.executable).with_name("stretto")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/stretto").symlink_to(own)
    settings = Settings(data_dir=Path("a folder"))
    tokens = token_settings(settings)
    text = welcome(settings, 1, tokens, shows_token=False)
    command = re.search(r"A token of the user alice: (.*)", text)
    assert command is not None
    assert f'"Authorization: Bearer $({command[1]})"' in text
    done = subprocess.run(
        command[1], shell=True, cwd="/", capture_output=True, text=True, check=True
    )
    claims = jwt.decode(done.stdout.strip(), tokens.jwt_secret, algorithms=["HS256"])
    assert "alice" == claims["sub"]


@pytest.mark.parametrize("nats_url", ["", "nats://127.0.0.1:4222"])
def test_the_urls_of_what_runs_are_named_by_commands(nats_url: str) -> None:
    """Not the URLs themselves: the text goes to a log, and they have passwords."""
    settings = Settings(component=ComponentSettings(nats_url=nats_url))
    text = welcome(settings, 1, TokenSettings(jwt_secret="s" * 32), shows_token=True)
    assert re.search(r"of the database: .* url --data-dir /", text)
    assert bool(nats_url) == bool(re.search(r"of NATS: .* url nats --data-dir /", text))
    assert "4222" not in text
