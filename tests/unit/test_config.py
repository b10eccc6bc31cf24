"""Settings: every error at once, nothing misspelt goes unnoticed."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from stretto.config import SETTINGS, Settings
from stretto.creation.age import AHEAD_SECONDS_MAX
from stretto.environment import environment_of, read_settings
from stretto.own_secret import token_settings
from stretto.setting import allowed
from stretto.start_errors import ConfigurationError
from stretto.webhook.rules import parse_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "a secret for tests that is long enough"
WEBHOOK_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("STRETTO_"):
            monkeypatch.delenv(name)


def values_of(part: Any) -> Iterator[tuple[str, Any]]:
    """Return the settings of a part and of its parts, and their values."""
    for each in fields(part):
        value = getattr(part, each.name)
        if is_dataclass(value):
            yield from values_of(value)
        elif "description" in each.metadata:
            yield each.name, value


def test_a_setting_has_one_name_and_one_place() -> None:
    """Two fields of one name would be one variable."""
    names = Counter(name for name, _ in values_of(Settings()))
    assert {*SETTINGS} == {*names}
    assert [] == [name for name, count in names.items() if count > 1]


def test_a_setting_fills_its_own_field_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay has a `batch_max` too, which no operator sets."""
    monkeypatch.setenv("STRETTO_BATCH_MAX", "7")
    component = read_settings().component
    assert (7, 256) == (component.batch_max, component.relay.batch_max)


def test_without_settings_everything_has_a_sensible_default() -> None:
    """And brings its own database."""
    settings = read_settings()
    assert Settings() == settings
    assert (True, "127.0.0.1", 8080, 5.0) == (
        settings.is_embedded,
        settings.host,
        settings.port,
        settings.component.creator.lease_seconds,
    )


@pytest.mark.parametrize(
    ("expected", "console", "database_url"),
    [
        (True, "auto", ""),
        (False, "auto", "postgresql://db/stretto"),
        (True, "on", "postgresql://db/stretto"),
        (False, "off", ""),
    ],
)
def test_a_console_is_there_for_trials_or_where_it_is_asked_for(
    expected: bool, console: str, database_url: str
) -> None:
    """A service in production has no page that its operator has not asked for."""
    assert expected is read_settings(console=console, database_url=database_url).has_console


def test_what_a_part_objects_to_is_reported_beside_the_other_errors() -> None:
    """A webhook's private address, which names the setting that allows it, and a port."""
    with pytest.raises(ConfigurationError) as error:
        read_settings(webhook_url="http://10.0.0.1/", webhook_secret=WEBHOOK_SECRET, port=-1)
    assert "STRETTO_WEBHOOK_ALLOW_PRIVATE=true" in str(error.value)
    assert "--port: " in str(error.value)
    assert "10.0.0.1" not in str(error.value)


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


def test_all_errors_are_reported_at_once_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_misspelt_name_is_reported_however_it_is_written(
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
        ("read_timeout_seconds", "0.1", "3600", ["0", "0.09", "3601", "nan", "inf"]),
        ("sessions_max", "1", "1000000", ["0", "1000001"]),
        ("sessions_per_user", "1", "10000", ["0", "10001"]),
        ("session_events_max", "1", "100000", ["0", "100001"]),
        ("heartbeat_seconds", "1", "3600", ["0.9", "3601", "nan", "inf"]),
        ("retention_days", "1", "3650", ["0", "3651"]),
        ("event_retention_days", "1", "3650", ["0", "3651"]),
        ("drain_seconds", "0", "3600", ["-1", "3601", "nan", "inf"]),
        ("lease_seconds", "0.1", "3600", ["0", "0.09", "-1", "3601", "nan", "inf"]),
        ("relay_lease_seconds", "1", "3600", ["0.9", "3601", "nan", "inf"]),
        ("attempt_age_max", "0", "315360000", ["-1", "315360001", "nan", "inf"]),
        ("rate_limit", "0", "1e6", ["-1", "nan", "inf", "-inf"]),
    ],
)
def test_every_number_has_its_bounds(
    name: str, least: str, most: str, wrong: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds themselves are good, and what lies beyond is reported by its name."""
    variable = f"STRETTO_{name.upper()}"
    words = allowed(SETTINGS[name])
    for good in (least, most):
        monkeypatch.setenv(variable, good)
        assert float(good) == dict(values_of(read_settings()))[name]
    for bad in wrong:
        monkeypatch.setenv(variable, bad)
        # What is no number of its kind at all has words of its own.
        with pytest.raises(ConfigurationError, match=f"{variable}: (?:must be {words}|.* valid)"):
            read_settings()


def test_every_number_that_an_operator_sets_has_a_least() -> None:
    """None of them may be forgotten above; only a rate needs no most."""
    bounds = {
        name: {*each.metadata} & {"ge", "le"}
        for name, each in SETTINGS.items()
        if type(each.default) in (int, float)
    }
    assert {"ge"} == bounds.pop("rate_limit")
    assert {frozenset({"ge", "le"})} == set(map(frozenset, bounds.values()))


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("--data-dir: must be the path of a folder", {"data_dir": ""}),
        ("--data-dir: must be the path of a folder", {"data_dir": " "}),
        ("--data-dir: .* on one line", {"data_dir": "a\nb"}),
        ("--host: must be an address or a name", {"host": ""}),
    ],
)
def test_an_empty_flag_is_no_place(words: str, given: dict[str, str]) -> None:
    """It would be the current folder, and every address of the machine."""
    with pytest.raises(ConfigurationError, match=words):
        read_settings(**given)


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
    with pytest.raises(ConfigurationError, match="--database-url: must look like") as error:
        read_settings(database_url=url)
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    ["keys", "issuer.test/keys", "ftp://issuer.test/keys", "https:///keys", "http://x:port/keys"],
)
def test_what_is_no_address_of_an_issuer_is_refused_at_once(url: str) -> None:
    """Instead of rejecting every token, as if the issuer were away."""
    with pytest.raises(ConfigurationError, match="--jwks-url: must look like"):
        read_settings(jwks_url=url)
    assert read_settings(jwks_url="http://[::1]:8000/keys").tokens.jwks_url


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.test", "a b", "a%20b", "ü..test"])
@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("host", "{}"),
        ("database_url", "postgresql://u:hidden@{}/x"),
        ("jwks_url", "https://{}/hidden"),
        ("nats_url", "nats://u:hidden@{}:4222"),
        ("webhook_url", "https://{}/hidden"),
        ("origins", "https://{}"),
    ],
)
def test_a_host_that_cannot_be_looked_up_is_refused(name: str, url: str, host: str) -> None:
    """A resolver would raise an error of Python's at each try."""
    with pytest.raises(ConfigurationError, match=f"--{name.replace('_', '-')}: ") as error:
        read_settings(**{name: url.format(host)})
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize("host", ["::1", "0.0.0.0", "localhost", "db_1", "bücher.test", "a.test."])
def test_an_address_or_a_name_is_a_host(host: str) -> None:
    """Whether it can be looked up now or not."""
    assert host == read_settings(host=host).host


@pytest.mark.parametrize("host", ["::ffff:127.0.0.1", "::FFFF:7f00:1"])
def test_an_address_of_ipv4_that_is_written_as_one_of_ipv6_is_refused(host: str) -> None:
    """The system refuses to listen there, and another port would not help."""
    with pytest.raises(ConfigurationError, match=r"--host: must be .* IPv4: 127\.0\.0\.1$"):
        read_settings(host=host)


@pytest.mark.parametrize("name", ["pg_foo", "pg_catalog", "information_schema"])
def test_a_schema_of_the_servers_own_is_refused(name: str) -> None:
    """PostgreSQL keeps these names; `pg` alone is free."""
    with pytest.raises(ConfigurationError, match="--db-schema: must be no schema of the server"):
        read_settings(db_schema=name)
    assert "pg" == read_settings(db_schema="pg").component.db_schema


@pytest.mark.parametrize("rate", ["1e-300", "0.000009"])
def test_a_rate_that_admits_nothing_in_a_day_is_refused(rate: str) -> None:
    """`Retry-After` would be as long as that."""
    with pytest.raises(ConfigurationError, match=r"--rate-limit: must be 0, or 0\.00001"):
        read_settings(rate_limit=rate)
    assert 0.00001 == read_settings(rate_limit="0.00001").component.creator.rate_limit


def test_a_request_may_be_as_old_as_its_failed_attempt_would_be_kept() -> None:
    """Unless the operator says otherwise; a client's clock that is ahead makes it no longer."""
    kept = read_settings(retention_days=2).component
    assert 2 * 86_400 - AHEAD_SECONDS_MAX == kept.first_sent_seconds_max
    assert 60 == read_settings(attempt_age_max=60).component.first_sent_seconds_max


@pytest.mark.parametrize("name", ["PORT", "JWT_SECRET_FILE"])
def test_a_setting_in_two_cases_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one counts would depend on their order; an empty one counts as none."""
    upper, lower = f"STRETTO_{name}", f"stretto_{name}"
    monkeypatch.setenv(upper, "1")
    monkeypatch.setenv(lower, "2")
    with pytest.raises(ConfigurationError, match=f"set only one of {upper}, {lower}"):
        read_settings()
    monkeypatch.setenv("STRETTO_PORT", "")
    monkeypatch.setenv("stretto_PORT", "3")
    monkeypatch.delenv("STRETTO_JWT_SECRET_FILE", raising=False)
    monkeypatch.delenv("stretto_JWT_SECRET_FILE", raising=False)
    assert 3 == read_settings().port


@pytest.mark.parametrize(
    "urls", ["", "embedded", "nats://u:p@127.0.0.1:4222", "tls://a.test, nats://[::1]:4222"]
)
def test_urls_of_nats_are_taken(urls: str) -> None:
    """None, our own server, one or several."""
    assert urls == read_settings(nats_url=urls).component.nats_url


@pytest.mark.parametrize("urls", ["127.0.0.1:4222", "http://u:hidden@x", "nats://", "nats://x,"])
def test_what_is_no_url_of_nats_is_refused_at_once(urls: str) -> None:
    """Instead of being waited for as if it were away; and its password is not repeated."""
    with pytest.raises(ConfigurationError, match="--nats-url: must look like") as error:
        read_settings(nats_url=urls)
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize("password", ["1/hidden", "1#hidden", "1?hidden", "hidden/1", "1,hidden"])
def test_an_unescaped_password_of_nats_is_not_taken_for_a_host(password: str) -> None:
    """The part before the / would be looked up, and logged; an @ of its own does no harm."""
    with pytest.raises(
        ConfigurationError, match=r"--nats-url: must look like .* %2F for a /"
    ) as error:
        read_settings(nats_url=f"nats://u:{password}@x")
    assert "hidden" not in str(error.value)
    for url in (f"nats://u:{quote(password, safe='')}@x", "nats://u:a@b@x", "wss://x/nats"):
        assert url == read_settings(nats_url=url).component.nats_url


@pytest.mark.parametrize(
    ("expected", "settings"),
    [
        ("only one of", {"jwt_secret": SECRET, "jwks_url": "http://127.0.0.1/keys"}),
        ("only one of", {"jwt_public_key": "PEM", "jwks_url": "http://127.0.0.1/keys"}),
        ("--jwt-secret: needs at least 32 bytes", {"jwt_secret": "short"}),
        ("at least 32 bytes", {"jwt_secret": "s" * 31}),
        ("each line, which is a secret of its own: write", {"jwt_secret": f"{SECRET}\n=="}),
        ("--jwt-secret: has nothing but blanks", {"jwt_secret": " \t" * 16}),
    ],
)
def test_tokens_are_verified_in_one_safe_way(expected: str, settings: dict[str, str]) -> None:
    """Two ways are an ambiguity, a short secret is none."""
    with pytest.raises(ConfigurationError, match=expected):
        read_settings(**settings)


def test_a_database_of_ones_own_needs_a_way_to_verify_tokens() -> None:
    """The service must not run open."""
    with pytest.raises(ConfigurationError, match="tokens cannot be verified"):
        token_settings(read_settings(database_url="postgresql://x/y"))
    settings = read_settings(database_url="postgresql://x/y", jwt_secret=SECRET)
    assert SECRET == token_settings(settings).jwt_secret


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
        assert repr(parse_secrets(WEBHOOK_SECRET)[0]) not in shown
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
        ("--webhook-url: must look like https", {"webhook_url": "backend.example/hook"}),
        ("--webhook-secret: must be whsec_ and", {"webhook_secret": "a secret"}),
        ("needs STRETTO_WEBHOOK_SECRET", {"webhook_url": "https://x/", "webhook_secret": " "}),
        ("needs STRETTO_WEBHOOK_SECRET", {"webhook_url": "https://x/"}),
    ],
)
def test_a_webhook_has_an_address_and_secrets(expected: str, given: dict[str, str]) -> None:
    """Unsigned events could be from anywhere."""
    with pytest.raises(ConfigurationError, match=expected):
        read_settings(**given)
    read_settings(webhook_url="https://x/", webhook_secret=f"{WEBHOOK_SECRET} {WEBHOOK_SECRET}")


@pytest.mark.parametrize("prefix", ["a.b", "a b", "_x", "$JS", "x" * 33, "a\n"])
def test_a_prefix_of_nats_names_is_one_token(prefix: str) -> None:
    """It stands in subjects and in names of streams."""
    with pytest.raises(ConfigurationError, match="--nats-prefix"):
        read_settings(nats_prefix=prefix)
    assert "Team-1" == read_settings(nats_prefix="Team-1").component.nats_prefix
    assert "stretto" == read_settings().component.nats_prefix


def test_settings_do_not_change() -> None:
    """What was checked at the start holds until the end."""
    with pytest.raises(FrozenInstanceError):
        read_settings().port = 1  # type: ignore[misc]


def test_an_error_is_reported_by_what_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A flag by its name, a file by its variable: that is where it is mended."""
    monkeypatch.setenv("STRETTO_PORT", "9000")
    file = tmp_path / "writers"
    file.write_text("many")
    monkeypatch.setenv("STRETTO_WRITERS_FILE", str(file))
    with pytest.raises(ConfigurationError) as error:
        read_settings(port=99999999)
    assert "--port: " in str(error.value)
    assert "STRETTO_WRITERS_FILE: " in str(error.value)
    assert "STRETTO_PORT" not in str(error.value)


@pytest.mark.parametrize(
    "written", [SECRET, SECRET + "\n", SECRET + "\r\n", SECRET + " \t\n\n", f"\ufeff{SECRET}\n"]
)
def test_a_setting_may_stand_in_a_file(
    written: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the byte order mark and line end that editors add; a flag overrides it."""
    file = tmp_path / "secret"
    file.write_text(written, "utf-8")
    monkeypatch.setenv("stretto_jwt_secret_file", str(file))
    monkeypatch.setenv("STRETTO_JWT_SECRET", "")
    assert SECRET == read_settings().tokens.jwt_secret
    assert SECRET[::-1] == read_settings(jwt_secret=SECRET[::-1]).tokens.jwt_secret


@pytest.mark.parametrize("around", ["{}\n", "{}\r\n", " {} "])
def test_blanks_around_a_value_are_none_of_it(around: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a file: a variable is often filled from one. Blanks alone are no value, and not unset."""
    monkeypatch.setenv("STRETTO_JWT_SECRET", around.format(SECRET))
    monkeypatch.setenv("STRETTO_JWT_AUDIENCE", around.format("chat"))
    tokens = read_settings().tokens
    assert (SECRET, "chat") == (tokens.jwt_secret, tokens.jwt_audience)
    for name in ("STRETTO_JWT_SECRET", "STRETTO_JWT_AUDIENCE"):
        monkeypatch.setenv(name, "\n")
        with pytest.raises(ConfigurationError, match=f"{name}: has nothing but blanks"):
            read_settings()


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_may_stand_in_a_file(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One rule; one that is in a file and beside it is an error, since either could be meant."""
    variable = f"STRETTO_{name.upper()}"
    default = SETTINGS[name].default
    is_empty = default in ("", (), frozenset())
    file = tmp_path / "value"
    file.write_text("x" if is_empty else str(default))
    monkeypatch.setenv(f"{variable}_FILE", str(file))
    if not is_empty:
        assert default == dict(values_of(read_settings()))[name]
    monkeypatch.setenv(variable, "x")
    with pytest.raises(ConfigurationError, match=f"set only one of {variable}, {variable}_FILE"):
        read_settings()


@pytest.mark.parametrize(
    ("expected", "content"),
    [("cannot be read", None), ("is empty", b"\xef\xbb\xbf \n"), ("not UTF-8", b"\xff")],
)
def test_a_file_that_holds_no_setting_is_named(
    expected: str, content: bytes | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An empty secret must not pass for none."""
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("STRETTO_JWT_SECRET_FILE", str(file))
    with pytest.raises(ConfigurationError, match=f"STRETTO_JWT_SECRET_FILE: {file}.*{expected}"):
        read_settings()


@pytest.mark.parametrize(
    ("expected", "path"),
    [("is a device or a socket: name a file", "/dev/zero"), ("has more than 65536 char", None)],
)
def test_a_file_without_an_end_is_not_read_to_it(
    expected: str, path: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would fill the memory, and nothing would say why the service is gone."""
    if path is None:
        file = tmp_path / "log"
        file.write_text("s" * 65537)
        path = str(file)
    monkeypatch.setenv("STRETTO_JWT_SECRET_FILE", path)
    with pytest.raises(ConfigurationError, match=f"STRETTO_JWT_SECRET_FILE: {path} {expected}"):
        read_settings()


def test_a_pipe_holds_a_setting_and_a_file_as_much_as_is_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The twin: a shell's `<(...)` is a pipe."""
    file = tmp_path / "secret"
    file.write_text("s" * 65536)
    monkeypatch.setenv("STRETTO_JWT_SECRET_FILE", str(file))
    assert "s" * 65536 == read_settings().tokens.jwt_secret
    reader, writer = os.pipe()
    try:
        os.write(writer, SECRET.encode())
        os.close(writer)
        monkeypatch.setenv("STRETTO_JWT_SECRET_FILE", f"/dev/fd/{reader}")
        assert SECRET == read_settings().tokens.jwt_secret
    finally:
        os.close(reader)


def test_two_ways_to_verify_tokens_are_refused_from_files_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And a webhook's secret counts wherever it stands."""
    file = tmp_path / "secret"
    file.write_text(SECRET)
    monkeypatch.setenv("STRETTO_JWT_SECRET_FILE", str(file))
    monkeypatch.setenv("STRETTO_JWKS_URL", "http://127.0.0.1/keys")
    with pytest.raises(ConfigurationError, match="set only one of STRETTO_JWT_SECRET"):
        read_settings()
    monkeypatch.delenv("STRETTO_JWKS_URL")
    monkeypatch.setenv("STRETTO_WEBHOOK_URL", "https://x/")
    file.write_text(WEBHOOK_SECRET)
    monkeypatch.setenv("STRETTO_WEBHOOK_SECRET_FILE", str(file))
    assert parse_secrets(WEBHOOK_SECRET) == read_settings().component.webhook.webhook_secret


def test_a_worker_gets_what_its_supervisor_has_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """However a variable was written, and without the file that it came from."""
    for name in ("stretto_port", "STRETTO_PORT_FILE", "Stretto_Host", "STRETTO_WRITERS_FILE"):
        monkeypatch.setenv(name, "x")
    environment = environment_of({"STRETTO_PORT": "1", "STRETTO_HOST": "h"})
    assert {"STRETTO_PORT": "1", "STRETTO_HOST": "h", "STRETTO_WRITERS_FILE": "x"} == {
        name: value for name, value in environment.items() if name.upper().startswith("STRETTO_")
    }
    assert os.environ["PATH"] == environment["PATH"]


@pytest.mark.parametrize(("expected", "mode"), [("cannot be read", None), ("chmod 600", 0o640)])
def test_a_password_file_that_would_be_passed_over_is_named(
    expected: str, mode: int | None, tmp_path: Path
) -> None:
    """The driver connects without a password then, and the server's refusal names no file."""
    file = tmp_path / "pgpass"
    url = f"postgresql://u@127.0.0.1/x?passfile={file}"
    if mode is not None:
        file.write_text("*:*:*:*:secret")
        file.chmod(mode)
    with pytest.raises(ConfigurationError, match=expected):
        read_settings(database_url=url)
    file.touch()
    file.chmod(0o600)
    assert url == read_settings(database_url=url).database_url


@pytest.mark.parametrize(
    ("count", "origins"),
    [
        (0, ""),
        (1, "*"),
        (1, "https://chat.example"),
        (3, "https://a.test:8443/, http://[::1],capacitor://localhost"),
    ],
)
def test_origins_are_taken(count: int, origins: str) -> None:
    """None, all, one or several; some apps have schemes of their own."""
    assert count == len(read_settings(origins=origins).streams.origins)


@pytest.mark.parametrize(
    "wrong",
    [
        "chat.example",
        "localhost:3000",
        "https://",
        "https://a.test/app",
        "https://a.test?x",
        "https://u@a.test",
        "https://a.test:port",
        "https://*.test https://b.test",
        "https://bücher.test",
    ],
)
def test_what_no_browser_sends_as_its_origin_is_refused_at_once(wrong: str) -> None:
    """Instead of keeping every page out; one wrong origin among others is enough."""
    with pytest.raises(ConfigurationError, match="--origins: must look like"):
        read_settings(origins=f"https://a.test,{wrong}")


def test_another_value_of_pgbouncer_is_a_usage_error() -> None:
    """Before anything connects, with the value that it takes and without a password."""
    with pytest.raises(ConfigurationError, match="pgbouncer takes the value true alone") as error:
        read_settings(database_url="postgresql://u:hidden@a/x?pgbouncer=maybe")
    assert "hidden" not in str(error.value)
