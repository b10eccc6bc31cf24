"""A client that has left is no bug."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from aiohttp.test_utils import make_mocked_request

from stretto.http.service import _answer

if TYPE_CHECKING:
    from unittest.mock import MagicMock

    from aiohttp import web


async def break_off(_: web.Request) -> web.StreamResponse:
    """Fail as a write does whose client has gone."""
    raise ConnectionResetError


@pytest.mark.parametrize(("status", "is_closing"), [(400, True), (500, False)])
async def test_a_lost_connection_is_an_error_only_while_the_client_is_there(
    status: int, is_closing: bool
) -> None:
    """It may have been another connection that was lost."""
    request = make_mocked_request("GET", "/docs/swagger-ui.css")
    transport: MagicMock = request.transport  # type: ignore[assignment]
    transport.is_closing.return_value = is_closing
    assert status == (await _answer(request, break_off)).status
