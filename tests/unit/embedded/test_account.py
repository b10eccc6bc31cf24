"""As whom the embedded server runs."""

from __future__ import annotations

import os

import pytest

from stretto.embedded.account import server_account
from stretto.start_errors import EmbeddedError


def test_a_user_without_a_name_is_told_to_bring_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that was given a number alone; PostgreSQL would refuse it later."""
    monkeypatch.setattr(os, "geteuid", lambda: 3_999_999_999)
    with pytest.raises(EmbeddedError, match=r"3999999999 is none.* set STRETTO_DATABASE_URL"):
        server_account()
