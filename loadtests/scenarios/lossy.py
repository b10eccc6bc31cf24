"""Clients with a bad network: the connection breaks before the answer has been read."""

from __future__ import annotations

import random
import socket
import ssl
import struct
import time
from typing import Final
from urllib.parse import urlsplit

from history import UNANSWERED, Answer
from locust import task

from scenarios.client import PATH, REQUEST_SECONDS_MAX, Client, Request

CUTS_MAX: Final = 3
# SO_LINGER on, 0 s: closing resets the connection instead of ending it in order.
RESET: Final = struct.pack("ii", 1, 0)
PORTS: Final = {"http": 80, "https": 443}


class LossyClient(Client):
    """Loses the connection once or more, and sends the same request with the same key again."""

    weight = 3

    @task
    def lose_and_retry(self) -> None:
        """Cut some tries off, then retry until the outcome is known."""
        wish = self.new_wish()
        self.begin(wish)
        for _ in range(random.randint(1, CUTS_MAX)):
            self._cut(Request.of_wish(wish, ""))
        self.settle(Request.of_wish(wish, "retry after a cut"))

    def _cut(self, request: Request) -> None:
        """Send the request on its own connection, and drop that at one of three moments."""
        moment = random.choice(("inside the request", "before the answer", "inside the answer"))
        name = f"cut {moment}"
        began = time.perf_counter()
        error: OSError | None = None
        try:
            self._send_and_drop(request, moment)
        except OSError as failure:
            error = failure
        self.note(request, Answer(time.time(), type(self).__name__, name, UNANSWERED))
        self.environment.events.request.fire(
            request_type="CUT",
            name=name,
            response_time=(time.perf_counter() - began) * 1000,
            response_length=0,
            exception=error,
            context={},
        )

    def _send_and_drop(self, request: Request, moment: str) -> None:
        url = urlsplit(self.host)
        address = (url.hostname or "", url.port or PORTS[url.scheme])
        connection = socket.create_connection(address, REQUEST_SECONDS_MAX)
        if url.scheme == "https":
            context = ssl.create_default_context()
            connection = context.wrap_socket(connection, server_hostname=url.hostname)
        with connection:
            message = _spell_out(request, url.netloc, url.path.rstrip("/") + PATH)
            if moment == "inside the request":
                message = message[: random.randint(1, len(message) - 1)]
            connection.sendall(message)
            if moment == "inside the answer":
                connection.recv(random.randint(1, 64))
            if random.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def _spell_out(request: Request, host: str, path: str) -> bytes:
    """Return the request as bytes."""
    headers = {"Host": host, "Content-Length": str(len(request.body)), **request.all_headers}
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\n{fields}\r\n".encode() + request.body
