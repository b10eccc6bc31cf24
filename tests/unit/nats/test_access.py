"""What gains access to NATS, and what is refused before anything connects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from stretto.environment import read_settings
from stretto.nats.access import Credentials, NatsSettings
from stretto.start_errors import ConfigurationError
from support.certificate import make_certificate

if TYPE_CHECKING:
    from pathlib import Path

# The example of NATS' own documentation.
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC_KEY = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
JWT = "-----BEGIN NATS USER JWT-----\na.b.c\n------END NATS USER JWT------\n"
KEY = f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"


def test_the_published_seed_has_the_published_key() -> None:
    """And its checksum is that of the server."""
    assert PUBLIC_KEY == Credentials.parse(f"{SEED}\n").public_key


@pytest.mark.parametrize(
    ("text", "jwt"),
    [
        (SEED, ""),
        (JWT + KEY, "a.b.c"),
        (f"{JWT}*** keep this ***\r\n{KEY}".replace("\n", "\r\n"), "a.b.c"),
    ],
)
def test_credentials_are_a_seed_or_the_text_of_a_file(text: str, jwt: str) -> None:
    """As `nsc` writes it, whatever else it says, and wherever it was edited."""
    found = Credentials.parse(text)
    assert (jwt, PUBLIC_KEY) == (found.jwt, found.public_key)


@pytest.mark.parametrize(
    "text",
    [
        PUBLIC_KEY,
        JWT,
        KEY,
        SEED[:-1],
        f"{SEED[:-1]}A",
        SEED.replace("SU", "SA", 1),
        f"{SEED} and more",
        "/run/secrets/stretto.creds",
    ],
)
def test_what_are_no_credentials_is_refused_and_not_repeated(text: str) -> None:
    """A public key, half of a file, a character that is wrong, the key of an account, a path."""
    with pytest.raises(ConfigurationError, match="STRETTO_NATS_CREDENTIALS must be") as error:
        NatsSettings(nats_credentials=text)
    assert text not in str(error.value)


def test_secrets_are_not_shown() -> None:
    """Neither of the settings nor of what is made of them."""
    settings = NatsSettings(nats_credentials=SEED)
    shown = f"{settings!r} {settings.credentials()!r}"
    assert SEED not in shown
    assert repr(Credentials.parse(SEED).seed) not in shown


def test_without_settings_the_urls_and_the_system_decide() -> None:
    """Who we are, and which authorities are trusted."""
    assert (None, None) == (NatsSettings().credentials(), NatsSettings().tls())


def test_a_private_authority_is_the_only_one_that_is_trusted(tmp_path: Path) -> None:
    """Any other authority of the system could speak for our servers."""
    certificate, key = (path.read_text() for path in make_certificate(tmp_path))
    ours = NatsSettings(nats_tls_ca=certificate).tls()
    assert ours is not None
    assert (1, True) == (len(ours.get_ca_certs()), ours.check_hostname)
    assert NatsSettings(nats_tls_cert=certificate, nats_tls_key=key).tls() is not None


def test_certificates_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    """Also a key with a password, for which a terminal would be asked."""
    certificate, key = (path.read_text() for path in make_certificate(tmp_path))
    locked = load_pem_private_key(key.encode(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")
    )
    good = {"nats_tls_ca": certificate, "nats_tls_cert": certificate, "nats_tls_key": key}
    other = make_certificate(tmp_path)[1].read_text()
    for name, value, message in (
        ("nats_tls_ca", "no certificate", "STRETTO_NATS_TLS_CA must be"),
        ("nats_tls_ca", "ä", "STRETTO_NATS_TLS_CA must be"),
        ("nats_tls_cert", key, "STRETTO_NATS_TLS_CERT and STRETTO_NATS_TLS_KEY must be"),
        ("nats_tls_cert", "", "set both"),
        ("nats_tls_key", "", "set both"),
        ("nats_tls_key", other, "STRETTO_NATS_TLS_CERT and STRETTO_NATS_TLS_KEY must be"),
        ("nats_tls_key", locked.decode(), "the key not encrypted"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            NatsSettings(**{**good, name: value})  # type: ignore[arg-type]


def test_all_of_it_may_come_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As secrets are mounted; and a wrong one is one error among others."""
    certificate, key = make_certificate(tmp_path)
    (tmp_path / "creds").write_text(JWT + KEY)
    files = {"TLS_CA": certificate, "TLS_CERT": certificate, "TLS_KEY": key}
    for name, path in (files | {"CREDENTIALS": tmp_path / "creds"}).items():
        monkeypatch.setenv(f"STRETTO_NATS_{name}_FILE", str(path))
    nats = read_settings(nats_replicas="3").component.nats
    assert 3 == nats.nats_replicas
    assert nats.tls() is not None
    assert Credentials.parse(SEED).public_key == nats.credentials().public_key  # type: ignore[union-attr]
    key.write_text("no key")
    with pytest.raises(ConfigurationError) as error:
        read_settings(port=-1)
    assert "--port: " in str(error.value)
    assert "STRETTO_NATS_TLS_KEY must be" in str(error.value)
    assert "no key" not in str(error.value)
