"""A program that calls a running service over HTTP.

Give it the service's URL and a token, both of which `make run` prints:

    python examples/client.py http://127.0.0.1:8080 eyJhbGciOi...
"""

from __future__ import annotations

import asyncio
import sys
import uuid

import aiohttp

import stretto


async def main(url: str, token: str) -> None:
    """Create one group with two calls, then misuse the key for another one."""
    # If a crash between two tries must not create a second group, store the key (in a file, in the
    # order's row) before the first call, and call again with it afterwards.
    key = str(uuid.uuid4())
    async with aiohttp.ClientSession() as session:
        client = stretto.StrettoClient(session, url, token)
        for _ in range(2):
            # The client itself retries after lost connections and while the service is busy or
            # restarts. A TimeoutError means that the outcome is unknown: call again with the same
            # key.
            answer = await client.create_group("Team", ["bob", "carol"], key=key)
            print(f"group {answer.group.group_id} (replay: {answer.is_replay})")
        try:
            await client.create_group("Another team", key=key)
        except stretto.ClientError as error:
            print(f"refused: {error.code}, retry: {error.retry.value}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
