"""Debian's Prometheus and promtool: a real one with our alerts, at many times their pace."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import yaml

from support.ports import free_port
from support.programs import find_program
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

MONITORING = Path(__file__).parents[2] / "monitoring"
PROMETHEUS = find_program("prometheus")
PROMTOOL = find_program("promtool")
MISSING = "these tests need Prometheus: apt-get install --no-install-recommends prometheus"
# A minute of the rules is a second of the test.
PACE = 60
_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, slots=True)
class Series:
    """Labels, and the values at their times."""

    labels: dict[str, str]
    points: list[tuple[float, float]]


class Prometheus:
    """A server that scrapes and evaluates; asked over its API."""

    def __init__(self, session: aiohttp.ClientSession, url: str, scrape_interval: str) -> None:
        self._session = session
        self._url = url
        self._scrape_interval = scrape_interval

    async def has(self, query: str) -> bool:
        """Whether a query has a result."""
        params = {"query": query}
        async with self._session.get(f"{self._url}/api/v1/query", params=params) as response:
            return bool((await response.json())["data"]["result"])

    async def series(self, query: str, start: float, end: float) -> list[Series]:
        """Return what a query has yielded over a time, at each scrape."""
        step = self._scrape_interval
        params = {"query": query, "start": str(start), "end": str(end), "step": step}
        async with self._session.get(f"{self._url}/api/v1/query_range", params=params) as response:
            document = await response.json()
        assert document["status"] == "success", document
        return [
            Series(each["metric"], [(at, float(value)) for at, value in each["values"]])
            for each in document["data"]["result"]
        ]

    async def firing(self) -> set[tuple[str, str]]:
        """Return which alerts fire, with their jobs."""
        async with self._session.get(f"{self._url}/api/v1/alerts") as response:
            alerts = (await response.json())["data"]["alerts"]
        return {
            (alert["labels"]["alertname"], alert["labels"]["job"])
            for alert in alerts
            if alert["state"] == "firing"
        }


@asynccontextmanager
async def running_prometheus(
    folder: Path, jobs: Mapping[str, Sequence[str]], pace: int = PACE
) -> AsyncIterator[Prometheus]:
    """Run one that scrapes the URLs of each job.

    A scrape has the time until the next one: 250 ms at the usual pace.
    """
    assert PROMETHEUS is not None, MISSING
    (folder / "alerts.yml").write_text(yaml.safe_dump(at_pace(alerts(), pace)))
    configuration = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    for name, seconds in configuration["global"].items():
        configuration["global"][name] = faster(seconds, pace)
    configuration["scrape_configs"] = [
        {
            "job_name": job,
            "static_configs": [{"targets": [url.removeprefix("http://") for url in urls]}],
        }
        for job, urls in jobs.items()
    ]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    place = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        *(PROMETHEUS, f"--config.file={folder}/prometheus.yml"),
        *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address={place}"),
        *("--query.lookback-delta=5s", "--log.level=warn"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    log = asyncio.create_task(process.stderr.read(), name="log of prometheus")
    try:
        async with aiohttp.ClientSession() as session:

            async def is_ready() -> bool:
                assert process.returncode is None, (await log).decode()
                try:
                    async with session.get(f"http://{place}/-/ready") as response:
                        return response.status == 200
                except aiohttp.ClientError:
                    return False

            await until(is_ready)
            interval = configuration["global"]["scrape_interval"]
            yield Prometheus(session, f"http://{place}", interval)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await log


def alerts() -> Any:
    """Return the alerts as they are delivered."""
    return yaml.safe_load((MONITORING / "alerts.yml").read_text())


def at_pace(rules: Any, pace: int) -> Any:
    """Return rules whose windows, waits and thresholds of seconds pass so many times as fast."""
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        if "for" in rule:
            rule["for"] = faster(rule["for"], pace)
        rule["expr"] = re.sub(
            r"(?<=\[)\d+[smh](?=\])|(?<=offset )\d+[smh]",
            lambda found: faster(found[0], pace),
            rule["expr"],
        )
        rule["expr"] = re.sub(
            r"(?<=_lag_seconds\) > )\d+", lambda found: str(int(found[0]) / pace), rule["expr"]
        )
    return rules


def faster(duration: str, pace: int) -> str:
    """Return a duration at this pace."""
    return f"{seconds(duration) * 1000 // pace}ms"


def seconds(duration: str) -> int:
    """Return how many seconds a duration of the rules has."""
    return int(duration[:-1]) * _SECONDS[duration[-1]]
