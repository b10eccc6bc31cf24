"""What runs in the service and does not, as `/readyz` and the metrics show it."""

from __future__ import annotations

import asyncio

import pytest

from stretto.assembly.application import create_app
from stretto.http.readiness import KEYS_UNKNOWN
from stretto.http.service import SERVICE
from stretto.http.tokens import jwks
from stretto.http.tokens.settings import TokenSettings
from stretto.observations import ActorCrashed
from stretto.runtime.backoff import Backoff
from support.api_client import hosted_api
from support.issuer import Issuer
from support.live_service import live_service
from support.waiting import until

DEADLINE_SECONDS = 60
NEVER = Backoff(3600.0, 3600.0)


class Crash(Exception):
    """What no actor expects."""


async def crash() -> int:
    """A turn that ends so."""
    raise Crash


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("writer", 503),
        ("history reader", 503),
        ("reader of attempts", 503),
        ("reader of health", 503),
        ("log tail", 503),
        ("announcer", 200),
        ("sweeper", 200),
        ("session hub", 200),
    ],
)
async def test_the_service_is_unready_and_says_why_while_what_requests_need_does_not_run(
    name: str, status: int, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no request waits for is named, and shown by the metric; all else is served on."""
    async with asyncio.timeout(DEADLINE_SECONDS), live_service(database_url) as live:
        runner = live.app[SERVICE].runner
        down = asyncio.Event()
        report = runner._report

        def observe(event: object) -> None:
            report(event)  # type: ignore[arg-type]
            if isinstance(event, ActorCrashed) and not runner.up[name]:
                down.set()

        monkeypatch.setattr(runner, "_report", observe)
        for actor, (_, task) in list(runner._runs.items()):
            if actor.name == name:
                actor.backoff = NEVER
                monkeypatch.setattr(actor, "run_once", crash)
                # It is in the midst of a turn, or at rest: another start ends either.
                task.cancel()
                await asyncio.wait([task])
                del runner._runs[actor]
                runner.start(actor)
                # The sweeper rests before its first turn.
                actor.wake()
        await down.wait()
        ready = await live.api.get("/readyz", user=None)
        assert status == ready.status
        if status == 503:
            assert f"Not running: {name}." == ready.json["detail"]
        else:
            assert {"status": "ready", "not_running": [name]} == ready.json
        metrics = (await live.api.get("/metrics", user=None)).body.decode()
        assert f'stretto_actor_up{{actor="{name}"}} 0.0' in metrics
        assert 200 == (await live.api.get("/livez", user=None)).status


async def test_the_service_is_ready_while_all_of_it_runs(database_url: str) -> None:
    """The twin."""
    async with asyncio.timeout(DEADLINE_SECONDS), live_service(database_url) as live:
        ready = await live.api.get("/readyz", user=None)
        assert (200, {"status": "ready"}) == (ready.status, ready.json)
        metrics = (await live.api.get("/metrics", user=None)).body.decode()
        assert 'stretto_actor_up{actor="writer"} 2.0' in metrics
        assert 'stretto_actor_up{actor="announcer"}' in metrics


async def test_the_service_is_unready_until_it_has_had_a_key_of_its_issuer(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would refuse every request. Once it has keys, an issuer that is away changes nothing."""
    monkeypatch.setattr(jwks, "RETRY", Backoff(0.01, 0.01))
    issuer = Issuer("k")
    issuer.status = 500
    async with asyncio.timeout(DEADLINE_SECONDS), issuer.serving() as url:
        app = create_app(dsn=database_url, tokens=TokenSettings(jwks_url=url))
        async with hosted_api(app) as api:
            unready = await api.get("/readyz", user=None)
            assert (503, KEYS_UNKNOWN) == (unready.status, unready.json["detail"])
            assert 200 == (await api.get("/livez", user=None)).status
            issuer.status = 200

            async def is_ready() -> bool:
                return 200 == (await api.get("/readyz", user=None)).status

            # Asking is enough: without it nothing would fetch them before the next heartbeat.
            await until(is_ready)
            issuer.status = 500
            keys = app[SERVICE].authenticator._key_set
            assert keys is not None
            await keys._fetch()
            assert keys._failure is not None
            assert await is_ready()
