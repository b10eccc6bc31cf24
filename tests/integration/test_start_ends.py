"""Programs that end while they start: a part that comes after stretto ends them."""

from __future__ import annotations

import pytest

from support.python_program import run_program

# The layout of docs/embedding.md, and a host's own check after it.
PROGRAM = """
import asyncio, os, signal, sys
from contextlib import AsyncExitStack
import asyncpg
import stretto
from aiohttp import web

dsn, layout, end = sys.argv[1:]
TOKENS = stretto.TokenSettings(jwt_secret="s" * 40)
POOL = web.AppKey("pool", asyncpg.Pool)
app = web.Application()

def make_pool():
    return asyncpg.create_pool(
        dsn, min_size=1, max_size=8, server_settings={"search_path": "stretto,public"}
    )

async def open_pool(app):
    try:
        async with make_pool() as pool:
            app[POOL] = pool
            yield
    finally:
        print("closed")

async def open_within(app):
    async with stretto.open_component(pool=app[POOL]):
        yield

async def open_on_start(app):
    await AsyncExitStack().enter_async_context(stretto.open_component(pool=app[POOL]))

def finish():
    if end == "exit":
        sys.exit("the bucket is not set")
    raise KeyboardInterrupt if end == "interrupt" else RuntimeError("a bug")

async def check(app):
    if end == "signal":
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)
        await asyncio.sleep(300)
    finish()

async def main():
    async with make_pool() as pool, stretto.open_component(pool=pool):
        asyncio.get_running_loop().call_soon(finish)
        await asyncio.sleep(300)

if layout == "main":
    asyncio.run(main())
    sys.exit("not ended")
if layout != "own":
    app.cleanup_ctx.append(open_pool)
if layout == "pool":
    stretto.setup(app, "/chat", pool=lambda: app[POOL], tokens=TOKENS)
elif layout == "own":
    stretto.setup(app, "/chat", dsn=dsn, tokens=TOKENS)
elif layout == "within":
    app.cleanup_ctx.append(open_within)
else:
    app.on_startup.append(open_on_start)
app.on_startup.append(check)
web.run_app(app, host="127.0.0.1", port=0, print=None)
"""
# Far below the minute after which the driver reports a pool that does not close.
DEADLINE_SECONDS = 30
ENDS = {
    "exit": (1, "the bucket is not set"),
    "interrupt": (0, ""),
    "error": (1, "RuntimeError: a bug"),
    "signal": (0, ""),
}


@pytest.mark.parametrize(
    ("layout", "end"),
    [
        *((layout, end) for layout in ("pool", "own") for end in ENDS),
        ("within", "exit"),
        ("within", "signal"),
        ("on_start", "exit"),
        ("on_start", "signal"),
        ("main", "exit"),
    ],
)
async def test_a_program_that_ends_during_its_start_ends_with_its_own_message(
    layout: str, end: str, database_url: str
) -> None:
    """Whether or not the actors have taken their first step; a host's pool closes either way."""
    code, output, errors = await run_program(
        PROGRAM, database_url, layout, end, seconds=DEADLINE_SECONDS
    )
    lines = errors.decode().splitlines()
    assert ENDS[end] == (code, lines[-1] if lines else ""), errors.decode()
    assert (b"" if layout in {"own", "main"} else b"closed\n") == output
    # No other: an exit's message has none, an error has its own.
    assert (end == "error") == errors.count(b"Traceback"), errors.decode()
