"""Access: how a connection to NATS proves who it is, and which servers it trusts.

Certificates, keys and credentials are settings that hold the text itself, so each can come from a
file (`STRETTO_NATS_CREDENTIALS_FILE`). What cannot work is refused at the start, without repeating
it. Nothing here loads the NATS client.
"""

from __future__ import annotations

import binascii
import os
import re
import sys
import tempfile
from base64 import b32decode, b32encode, b64encode
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stretto.setting import setting
from stretto.start_errors import ConfigurationError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# JetStream's own limit.
REPLICAS_MAX: Final = 5
_JWT: Final = re.compile(r"-BEGIN NATS USER JWT-+\s+(\S+)\s+-+END NATS USER JWT-")
# 58 characters: two bytes that say what it is, the seed's 32 bytes, and a checksum.
_SEED: Final = re.compile(r"\bSU[A-Z2-7]{56}\b")
_KIND_BYTES: Final = 2
_CHECKSUM_BYTES: Final = 2
# What a user's public key begins with: it makes the first letter a U.
_USER: Final = b"\xa0"


class AccessInvalid(ConfigurationError, ValueError):
    """Such access is refused; as a `ValueError`, one of the settings' errors."""


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """A user's nkey, and the JWT that an account has issued for it, if there is one."""

    seed: bytes
    jwt: str

    @classmethod
    def parse(cls, text: str) -> Credentials:
        """Read the text of a .creds file, or a bare seed; raises `AccessInvalid`."""
        jwt, seed = _JWT.search(text), _SEED.search(text)
        if seed is not None and (jwt is not None or seed[0] == text.strip()):
            raw = b32decode(f"{seed[0]}======")
            content, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
            if checksum == _checksum(content):
                return cls(content[_KIND_BYTES:], jwt[1] if jwt else "")
        raise AccessInvalid(
            "STRETTO_NATS_CREDENTIALS must be the text of a user's .creds file, or the seed of a"
            " user's nkey (SU...)"
        )

    @property
    def public_key(self) -> str:
        """The nkey that the server knows."""
        content = _USER + self._key().public_key().public_bytes_raw()
        return b32encode(content + _checksum(content)).decode().rstrip("=")

    def sign(self, nonce: str) -> bytes:
        """Return the signature that proves to a server that the seed is ours."""
        return b64encode(self._key().sign(nonce.encode()))

    def _key(self) -> Ed25519PrivateKey:
        # Every command reads these settings; few processes have a key to load the library for.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
            Ed25519PrivateKey,
        )

        return Ed25519PrivateKey.from_private_bytes(self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsSettings:
    """How NATS is reached, and how many of its servers keep our streams.

    Raises `AccessInvalid` for texts that are no such certificates, keys or credentials.
    """

    nats_replicas: int = setting(
        1, "servers of a NATS cluster that keep a copy of each stream", ge=1, le=REPLICAS_MAX
    )
    """3 in a cluster: streams then outlast the loss of one server."""
    nats_credentials: str = setting(
        "", "the text of a user's .creds file, or the seed of an nkey", is_secret=True
    )
    nats_tls_ca: str = setting(
        "", "certificates (PEM) of the authorities for NATS' servers; empty: the system's"
    )
    """With it, or with our own certificate, TLS is required whatever the URL says."""
    nats_tls_cert: str = setting("", "our certificate (PEM) for NATS' servers, with its chain")
    nats_tls_key: str = setting("", "the private key (PEM) of that certificate", is_secret=True)

    def __post_init__(self) -> None:
        self.credentials()
        self.tls()

    def credentials(self) -> Credentials | None:
        """Return what a server's challenge is signed with; None if the URL says who we are."""
        return Credentials.parse(self.nats_credentials) if self.nats_credentials else None

    def tls(self) -> ssl.SSLContext | None:
        """Return what TLS needs beyond the system's authorities; None if that is nothing."""
        if not (self.nats_tls_ca or self.nats_tls_cert or self.nats_tls_key):
            return None
        # Loaded only with such settings, as in `Credentials`.
        import ssl  # noqa: PLC0415

        if bool(self.nats_tls_cert) != bool(self.nats_tls_key):
            raise AccessInvalid("set both STRETTO_NATS_TLS_CERT and STRETTO_NATS_TLS_KEY, or none")
        try:
            context = ssl.create_default_context(cadata=self.nats_tls_ca or None)
        except (ssl.SSLError, TypeError, ValueError) as error:
            # A `TypeError` is what `ssl` makes of a letter that is not ASCII.
            raise AccessInvalid("STRETTO_NATS_TLS_CA must be certificates in PEM") from error
        if self.nats_tls_cert:
            with _as_file(f"{self.nats_tls_cert}\n{self.nats_tls_key}\n") as path:
                try:
                    context.load_cert_chain(path, password=_no_password)
                except (ssl.SSLError, ValueError):
                    # Without the cause, which says nothing that an operator could use.
                    raise AccessInvalid(
                        "STRETTO_NATS_TLS_CERT and STRETTO_NATS_TLS_KEY must be a certificate and"
                        " its key in PEM, the key not encrypted"
                    ) from None
        return context


def _checksum(content: bytes) -> bytes:
    return binascii.crc_hqx(content, 0).to_bytes(_CHECKSUM_BYTES, "little")


def _no_password() -> str:
    # Otherwise OpenSSL would ask the terminal for it.
    raise ValueError


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Provide the text as a file for a moment: `ssl` reads keys from files alone.

    On Linux it is in memory: a container may have no folder that can be written.
    """
    is_in_memory = sys.platform == "linux"
    with (
        os.fdopen(os.memfd_create("certificate"), "w")
        if is_in_memory
        else tempfile.NamedTemporaryFile("w")
    ) as file:
        file.write(text)
        file.flush()
        yield f"/dev/fd/{file.fileno()}" if is_in_memory else file.name
