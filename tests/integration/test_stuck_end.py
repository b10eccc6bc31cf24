"""The end of a process whose loop cannot be closed: a lookup of a name holds it up."""

from __future__ import annotations

import pytest

from support.python_program import run_program

# A loop like that of a process whose DNS does not answer.
PROGRAM = """
import sys, time
import uvloop
from stretto import cli
from stretto.commands import running
from stretto.environment import read_settings
from stretto.errors import NotFound
from stretto.telemetry.logs import logger

class Stuck(uvloop.Loop):
    def close(self):
        time.sleep(float(sys.argv[1]))
        super().close()

class Loop(running._Loop, Stuck):
    pass

async def work():
    logger.info("nearly.done")
    print("some output")
    exec(sys.argv[2])

def app():
    running._Loop = Loop
    running.run(work(), read_settings(), exit_code=eval(sys.argv[3]))
    print("the end")

cli.app = app
cli.main()
"""
STUCK = "300"
DEADLINE_SECONDS = 30


@pytest.mark.parametrize(
    ("expected", "seconds", "does", "exit_code"),
    [
        ((0, "some output\n", ""), STUCK, "pass", "0"),
        (
            (1, "some output\n", "stretto: no such key\n"),
            STUCK,
            "raise NotFound('no such key')",
            "0",
        ),
        (
            (130, "some output\n", "stretto: interrupted\n"),
            STUCK,
            "raise KeyboardInterrupt",
            "None",
        ),
        # What the process does afterwards decides.
        ((0, "some output\nthe end\n", ""), "2", "pass", "None"),
        ((0, "some output\nthe end\n", ""), "0", "pass", "0"),
    ],
)
async def test_a_loop_that_cannot_be_closed_holds_up_no_end(
    expected: tuple[int, str, str], seconds: str, does: str, exit_code: str
) -> None:
    """All that was printed and logged is there, and so are the message and the exit code."""
    code, output, errors = await run_program(
        PROGRAM, seconds, does, exit_code, seconds=DEADLINE_SECONDS
    )
    log, _, message = errors.decode().partition("\n")
    assert "nearly.done" in log
    assert expected == (code, output.decode(), message)
