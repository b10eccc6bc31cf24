"""Settings: every fault at once, nothing misspelt goes unnoticed."""

from __future__ import annotations

import os

import pytest
from pydantic import ValidationError

from stretto.assembly import ComponentSettings
from stretto.config import read_settings, require_token_settings
from stretto.errors import ConfigurationError

SECRET = "a secret for tests that is long enough"
WEBHOOK_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("STRETTO_"):
            monkeypatch.delenv(name)


def test_without_settings_everything_has_a_sensible_default() -> None:
    """And brings its own database."""
    settings = read_settings()
    assert (True, "127.0.0.1", 8080, 5.0) == (
        settings.is_embedded,
        settings.host,
        settings.port,
        settings.lease_seconds,
    )


def test_flags_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a flag that is not given does not."""
    monkeypatch.setenv("STRETTO_PORT", "9000")
    monkeypatch.setenv("STRETTO_WORKERS", "2")
    settings = read_settings(port=9001, workers=None)
    assert (9001, 2) == (settings.port, settings.workers)


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As compose files set them."""
    monkeypatch.setenv("STRETTO_PORT", "")
    assert read_settings().port == 8080


def test_all_faults_are_told_at_once_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator mends them in one go."""
    faulty = {
        "STRETTO_PORT": "70000",
        "STRETTO_WRITERS": "many",
        "STRETTO_DB_SCHEMA": 'x"; DROP',
        "STRETTO_LEASE_SECONDS": "0",
        "STRETTO_LOG_LEVEL": "loud",
        "STRETTO_RATE_LIMIT": "inf",
        "STRETTO_DATABASE_URL": "mysql://x/y",
        "STRETTO_JWT_SECRET": "short",
        "STRETTO_PROT": "1",
    }
    for name, value in faulty.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STRETTO_JWKS_URL", "http://127.0.0.1/keys")
    with pytest.raises(ConfigurationError) as error:
        read_settings()
    for name in faulty:
        assert f"{name}: " in str(error.value)
    assert "STRETTO_PROT: unknown setting" in str(error.value)
    assert "set only one of STRETTO_JWT_SECRET" in str(error.value)


@pytest.mark.parametrize("name", ["stretto_prot", "Stretto_Prot", "STRETTO_"])
def test_a_misspelt_name_is_told_however_it_is_written(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are read in either case, so they are checked in either case."""
    monkeypatch.setenv("stretto_port", "9000")
    assert read_settings().port == 9000
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigurationError, match="unknown setting"):
        read_settings()


@pytest.mark.parametrize(
    ("name", "least", "most", "wrong"),
    [
        ("port", "0", "65535", ["-1", "65536", "x", "1.5"]),
        ("workers", "1", "64", ["0", "65"]),
        ("writers", "1", "32", ["0", "33"]),
        ("batch_max", "1", "1000", ["0", "1001"]),
        ("mailbox_max", "1", "100000", ["0", "100001"]),
        ("connections_max", "10", "1000000", ["9", "1000001"]),
        ("read_timeout_seconds", "0.1", "3600", ["0", "3601", "nan", "inf"]),
        ("sessions_max", "1", "1000000", ["0", "1000001"]),
        ("sessions_per_user", "1", "10000", ["0", "10001"]),
        ("session_events_max", "1", "100000", ["0", "100001"]),
        ("heartbeat_seconds", "1", "3600", ["0.9", "3601", "nan", "inf"]),
        ("retention_days", "1", "3650", ["0", "3651"]),
        ("lease_seconds", "0.1", "3600", ["0", "3601", "nan", "inf"]),
        ("rate_limit", "0", "1e6", ["-1", "nan", "inf"]),
    ],
)
def test_every_number_has_its_bounds(
    name: str, least: str, most: str, wrong: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds themselves are good, and what lies beyond is told by its name."""
    variable = f"STRETTO_{name.upper()}"
    for good in (least, most):
        monkeypatch.setenv(variable, good)
        assert float(good) == getattr(read_settings(), name)
    for bad in wrong:
        monkeypatch.setenv(variable, bad)
        with pytest.raises(ConfigurationError, match=f"{variable}: "):
            read_settings()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@127.0.0.1:5432/x",
        "postgres://[::1]:5432,[::2],db.test:6000/x?sslmode=require",
        "postgresql:///x?host=/run/postgresql",
    ],
)
def test_a_url_of_a_database_is_taken(url: str) -> None:
    """With one host, with several, or through a socket."""
    assert url == read_settings(database_url=url).database_url


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "mysql://u:hidden@127.0.0.1/x",
        "postgresql://u:hidden@127.0.0.1:port/x",
        "postgresql://u:hidden@127.0.0.1:5432,127.0.0.2:99999/x",
        "postgresql://u:hidden@[::1/x",
    ],
)
def test_what_is_no_url_of_a_database_is_refused_at_once(url: str) -> None:
    """Instead of being waited for as if it were away; and its password is not repeated."""
    with pytest.raises(ConfigurationError, match="STRETTO_DATABASE_URL: must look like") as error:
        read_settings(database_url=url)
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    ["keys", "issuer.test/keys", "ftp://issuer.test/keys", "https:///keys", "http://x:port/keys"],
)
def test_what_is_no_address_of_an_issuer_is_refused_at_once(url: str) -> None:
    """Instead of letting nobody in, as if the issuer were away."""
    with pytest.raises(ConfigurationError, match="STRETTO_JWKS_URL: must look like"):
        read_settings(jwks_url=url)
    assert read_settings(jwks_url="http://[::1]:8000/keys").jwks_url


@pytest.mark.parametrize(
    "urls", ["", "embedded", "nats://u:p@127.0.0.1:4222", "tls://a.test, nats://[::1]:4222"]
)
def test_urls_of_nats_are_taken(urls: str) -> None:
    """None, our own server, one or several."""
    assert urls == read_settings(nats_url=urls).nats_url


@pytest.mark.parametrize("urls", ["127.0.0.1:4222", "http://u:hidden@x", "nats://", "nats://x,"])
def test_what_is_no_url_of_nats_is_refused_at_once(urls: str) -> None:
    """Instead of being waited for as if it were away; and its password is not repeated."""
    with pytest.raises(ConfigurationError, match="STRETTO_NATS_URL: must look like") as error:
        read_settings(nats_url=urls)
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize(
    ("expected", "settings"),
    [
        ("only one of", {"jwt_secret": SECRET, "jwks_url": "http://127.0.0.1/keys"}),
        ("only one of", {"jwt_public_key": "PEM", "jwks_url": "http://127.0.0.1/keys"}),
        ("STRETTO_JWT_SECRET: needs at least 32 bytes", {"jwt_secret": "short"}),
        ("at least 32 bytes", {"jwt_secret": "s" * 31}),
    ],
)
def test_tokens_are_verified_in_one_safe_way(expected: str, settings: dict[str, str]) -> None:
    """Two ways are an ambiguity, a short secret is none."""
    with pytest.raises(ConfigurationError, match=expected):
        read_settings(**settings)


def test_a_database_of_ones_own_needs_a_way_to_verify_tokens() -> None:
    """The service must not run open."""
    with pytest.raises(ConfigurationError, match="tokens cannot be verified"):
        require_token_settings(read_settings(database_url="postgresql://x/y"))
    require_token_settings(read_settings(database_url="postgresql://x/y", jwt_secret=SECRET))


def test_secrets_are_not_shown() -> None:
    """Neither the token secret nor the database's password, nor those of the webhook."""
    settings = read_settings(
        jwt_secret=SECRET,
        database_url="postgresql://u:hidden@x/y",
        nats_url="nats://u:hidden@x",
        webhook_url="https://x/hidden",
        webhook_secret=WEBHOOK_SECRET,
    )
    for shown in (repr(settings), str(settings)):
        assert SECRET not in shown
        assert WEBHOOK_SECRET not in shown
        assert "hidden" not in shown


def test_a_secret_that_is_refused_is_not_repeated() -> None:
    """An error ends up in a log."""
    with pytest.raises(ConfigurationError) as error:
        read_settings(jwt_secret="hidden", webhook_secret="whsec_hidden", port=-1)
    assert "hidden" not in str(error.value)
    assert error.value.__cause__ is error.value.__context__ is None


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        ("STRETTO_WEBHOOK_URL: must look like https", {"webhook_url": "backend.example/hook"}),
        ("STRETTO_WEBHOOK_SECRET: must be whsec_ and", {"webhook_secret": "a secret"}),
        ("needs STRETTO_WEBHOOK_SECRET", {"webhook_url": "https://x/", "webhook_secret": " "}),
        ("needs STRETTO_WEBHOOK_SECRET", {"webhook_url": "https://x/"}),
    ],
)
def test_a_webhook_has_an_address_and_secrets(expected: str, given: dict[str, str]) -> None:
    """Unsigned events could be anybody's."""
    with pytest.raises(ConfigurationError, match=expected):
        read_settings(**given)
    read_settings(webhook_url="https://x/", webhook_secret=f"{WEBHOOK_SECRET} {WEBHOOK_SECRET}")


@pytest.mark.parametrize("prefix", ["a.b", "a b", "_x", "$JS", "x" * 33, "a\n"])
def test_a_prefix_of_nats_names_is_one_token(prefix: str) -> None:
    """It stands in subjects and in names of streams."""
    with pytest.raises(ConfigurationError, match="STRETTO_NATS_PREFIX"):
        read_settings(nats_prefix=prefix)
    assert "Team-1" == ComponentSettings.of(read_settings(nats_prefix="Team-1")).nats_prefix
    assert "stretto" == ComponentSettings.of(read_settings()).nats_prefix


def test_settings_do_not_change() -> None:
    """What was checked at the start holds until the end."""
    with pytest.raises(ValidationError):
        read_settings().port = 1
