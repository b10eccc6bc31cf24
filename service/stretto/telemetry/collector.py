"""CollectorSession: the HTTP client that takes traces to their collector, for OpenTelemetry's exporter.

The exporter needs the status of an answer and its `Retry-After`. By itself it would read all that a
collector sends into memory, unpacked, for as long as something comes. So what is read of an answer is
bounded where its connection is read, in bytes and in time: interim answers (1xx), head, body and all
between them count. Nothing is unpacked, and the connection ends at the first byte beyond the bound.

Only a process that exports has these libraries installed: `trace_export.py` imports this where it does.
"""

from __future__ import annotations

import io
import time
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPResponse
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Final

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from urllib3 import HTTPConnectionPool

# A collector's answer to a batch has some 200 bytes.
ANSWER_BYTES_MAX: Final = 64 * 1024


class CollectorSession(requests.Session):
    """Sends batches of spans, and names what failed of each try."""

    def __init__(self, failed: Callable[[str], object]) -> None:
        """Take what is called with the kind of each try's failure, and with "" after a success."""
        super().__init__()
        self._failed = failed
        adapter = _BoundedAdapter()
        self.mount("http://", adapter)
        self.mount("https://", adapter)
        # They would gather, and come back in each request.
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request; raises what `requests` raises, whose text may have the address in it."""
        try:
            answer = super().request(*args, **kwargs)
        except Exception as error:
            kind = type(error).__name__
            self._failed(kind)
            raise
        is_taken = answer.status_code < HTTPStatus.MULTIPLE_CHOICES
        self._failed("" if is_taken else f"HTTP {answer.status_code}")
        if answer.ok and not is_taken:
            # The exporter follows none, and would take it for a success.
            raise requests.TooManyRedirects
        return answer


class _BoundedAdapter(HTTPAdapter):
    """Makes connections whose answers are bounded, also to a proxy, and reads each to its end."""

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> HTTPConnectionPool:
        """Return the connections to a place."""
        pool = super().get_connection_with_tls_context(*args, **kwargs)
        pool.ConnectionCls = _HttpsConnection if pool.scheme == "https" else _HttpConnection
        return pool

    def send(
        self, request: requests.PreparedRequest, *_: object, **options: Any
    ) -> requests.Response:
        """Return an answer without its body."""
        answer = super().send(request, **{**options, "stream": True})
        # Packed, as it came, and read in full: only then can its connection be used again.
        with suppress(HTTPError):
            answer.raw.read(ANSWER_BYTES_MAX, decode_content=False)
        return answer


class _BoundedAnswer(HTTPResponse):
    """An answer of which a bounded part is read."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_BoundedReader(sock, self.fp.detach()))


class _HttpConnection(HTTPConnection):
    response_class = _BoundedAnswer


class _HttpsConnection(HTTPSConnection):
    response_class = _BoundedAnswer


class _BoundedReader(io.RawIOBase):
    """Reads one answer from a connection; the time-out of one read is that of all of them."""

    def __init__(self, sock: socket.socket, source: io.RawIOBase) -> None:
        self._sock, self._source = sock, source
        self._left = ANSWER_BYTES_MAX
        seconds = sock.gettimeout()
        assert seconds is not None, "the exporter gives each try a time-out"
        self._ends = time.monotonic() + seconds

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read what has come; raises an `OSError` beyond the bounds."""
        seconds = self._ends - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the answer takes too long")
        if self._left == 0:
            raise ConnectionError("the answer is too large")
        self._sock.settimeout(seconds)
        count = self._source.readinto(memoryview(buffer)[: self._left])
        self._left -= count or 0
        return count

    def close(self) -> None:
        """Let go of the connection."""
        self._source.close()
        super().close()
