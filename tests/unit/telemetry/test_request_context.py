"""A request's context goes with what is done for it, and with nothing else."""

from __future__ import annotations

import asyncio

import pytest

from stretto.telemetry.logs import logger
from stretto.telemetry.request_context import (
    CURRENT_REQUEST,
    REQUEST_IDS_MAX,
    RequestContext,
    request_ids,
)
from support.traces import TRACE_ID, traced_request


def ids(caplog: pytest.LogCaptureFixture) -> list[str | None]:
    """Return the request's id of each line."""
    return [vars(record).get("request_id") for record in caplog.records]


async def test_lines_of_a_request_name_it(caplog: pytest.LogCaptureFixture) -> None:
    """Also those of tasks and callbacks that began in it."""
    loop = asyncio.get_running_loop()
    called = loop.create_future()

    def call_back(_: object) -> None:
        logger.error("request.crashed", reason="a callback")
        called.set_result(None)

    async def work() -> None:
        logger.error("request.crashed", reason="a task")

    begun = loop.create_future()
    with RequestContext("r1"):
        logger.error("request.crashed", reason="itself")
        begun.add_done_callback(call_back)
        task = asyncio.create_task(work(), name="work for a request")
    logger.error("request.crashed", reason="another's")
    begun.set_result(None)
    await task
    await called
    assert ["r1", None, "r1", "r1"] == ids(caplog)


def test_lines_of_a_traced_request_name_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    """So that a line leads to the trace; the others have none."""
    for request in (traced_request(), RequestContext("r1")):
        with request:
            logger.error("request.crashed")
    assert [TRACE_ID, None] == [vars(record).get("trace_id") for record in caplog.records]


def test_a_line_that_names_its_request_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """It knows better."""
    with RequestContext("r1"):
        logger.error("request.crashed", request_id="r2")
    assert ["r2"] == ids(caplog)


def test_requests_may_be_entered_one_in_the_other() -> None:
    """What was before is there again, also after an error."""
    outer, inner = RequestContext("r1"), RequestContext("r2")
    with outer:
        with inner:
            assert CURRENT_REQUEST.get() is inner
        with pytest.raises(ZeroDivisionError), inner:
            raise ZeroDivisionError
        assert CURRENT_REQUEST.get() is outer
    assert CURRENT_REQUEST.get() is None


def test_a_line_names_a_few_of_many_requests() -> None:
    """Those that have one: a command's write has none."""
    requests = [None, *(RequestContext(str(number)) for number in range(20))]
    assert tuple(map(str, range(REQUEST_IDS_MAX))) == request_ids(requests)
    assert () == request_ids([None])
