"""A client of the service over HTTP: creates, reads, and receives events.

A program that only calls a stretto service needs nothing else of this package. In the order of
reading: what answers mean (`replies`), how requests are sent and tried again (`calls`), wishes that
outlive the program (`intentions`), live events (`sessions`), and all of it for one user
(`stretto_client`).
"""

from stretto.client.intentions import Intention, Intentions
from stretto.client.replies import ClientAnswer, ClientError
from stretto.client.sessions import Received
from stretto.client.stretto_client import StrettoClient

__all__ = [
    "ClientAnswer",
    "ClientError",
    "Intention",
    "Intentions",
    "Received",
    "StrettoClient",
]
