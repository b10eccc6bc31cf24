"""A program that calls a running service over HTTP.

Give it the service's URL, a token, both of which `make run` prints, and a folder:

    python examples/client.py http://127.0.0.1:8080 eyJhbGciOi... intentions
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp

import stretto


async def main(url: str, token: str, folder: str) -> None:
    """Create one group with two calls, misuse the key for another one, and read the group."""
    # An intention is on the disk before it is sent: a crash at any point does not create a second
    # group, as long as the program sends what it finds in the folder when it starts.
    intentions = stretto.Intentions(folder)
    wanted = intentions.add(stretto.Intention.of("Team", ["bob", "carol"]))
    async with aiohttp.ClientSession() as session:
        client = stretto.StrettoClient(session, url, token)
        for _ in range(2):
            # The client itself retries after lost connections and while the service is busy or
            # restarts. A TimeoutError means that the outcome is unknown: send it again.
            answer = await client.send(wanted)
            print(f"group {answer.group.group_id} (replay: {answer.is_replay})")
        try:
            await client.create_group("Another team", key=wanted.key)
        except stretto.ClientError as error:
            print(f"refused: {error.code}, retry: {error.retry.value}")
        group = await client.read_group(answer.group.group_id)
        print(f"{group['name']} has {group['members_count']} members")
    intentions.remove(wanted)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3]))
