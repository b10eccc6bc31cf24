"""The compose file against the Compose Specification's schema, as `make compose` checks it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import yaml

from stretto.config import Settings
from stretto.supervisor import STOP_SECONDS

DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"
COMPOSE_FILE = Path(__file__).parents[2] / "docker-compose.yml"


def check(compose_file: Path) -> subprocess.CompletedProcess[str]:
    """Run the check that `make compose` runs; its schema comes with the package."""
    program = Path(sys.executable).with_name("check-jsonschema")
    return subprocess.run(
        [program, "--builtin-schema", "vendor.compose-spec", compose_file],
        capture_output=True,
        text=True,
        check=False,
    )


def test_compose_file_follows_the_specification() -> None:
    """A slip in the file is found without a container engine."""
    checked = check(COMPOSE_FILE)

    assert 0 == checked.returncode, checked.stdout


def test_misspelt_key_is_refused(tmp_path: Path) -> None:
    """The check can fail: the same file with one key misspelt does not pass."""
    misspelt = tmp_path / "docker-compose.yml"
    misspelt.write_text(COMPOSE_FILE.read_text().replace("depends_on:", "depend_on:", 1))

    checked = check(misspelt)

    assert 1 == checked.returncode
    assert "'depend_on' was unexpected" in checked.stdout


def test_two_replicas_share_one_database_and_one_bus() -> None:
    """The same addresses, each of a service that is there, a NATS that keeps streams, and time to stop."""
    composed = yaml.safe_load(COMPOSE_FILE.read_text())
    services = composed["services"]
    first, second = services["replica-1"], services["replica-2"]
    assert first["environment"] == second["environment"]
    for name in ("STRETTO_DATABASE_URL", "STRETTO_NATS_URL"):
        host = first["environment"][name].rpartition("@")[2].partition("/")[0].partition(":")[0]
        assert host in services
        assert host == "postgres" or host in first["depends_on"]
    assert "jetstream" in composed["configs"]["nats"]["content"]
    grace_seconds = int(first["stop_grace_period"].removesuffix("s"))
    assert grace_seconds >= Settings().drain_seconds + STOP_SECONDS
    once = {name for name, service in services.items() if "restart" not in service}
    assert once == {"migrate"}


def test_a_password_is_no_argument() -> None:
    """Every process of the machine can read arguments: NATS gets its password from a file."""
    composed = yaml.safe_load(COMPOSE_FILE.read_text())
    nats = composed["services"]["nats"]
    address = composed["services"]["replica-1"]["environment"]["STRETTO_NATS_URL"]
    password = address.removeprefix("nats://stretto:").rpartition("@")[0]

    assert f'password: "{password}"' in composed["configs"]["nats"]["content"]
    assert {"source": "nats", "target": nats["command"][-1]} in nats["configs"]
    assert not [argument for argument in nats["command"] if password in argument]


def test_the_profile_of_monitoring_has_what_it_needs() -> None:
    """Files of ours where the images look for them; without the profile nothing of it runs."""
    composed = yaml.safe_load(COMPOSE_FILE.read_text())
    configs = composed["configs"]
    for name in ("prometheus", "grafana"):
        service = composed["services"][name]
        assert ["monitoring"] == service["profiles"]
        for config in service["configs"]:
            source = configs[config["source"]]
            assert "content" in source or (COMPOSE_FILE.parent / source["file"]).is_file()
    scraped = yaml.safe_load((COMPOSE_FILE.parent / configs["prometheus"]["file"]).read_text())
    places = {config["target"] for config in composed["services"]["prometheus"]["configs"]}
    assert {f"/etc/prometheus/{file}" for file in scraped["rule_files"]} <= places
    (job,) = scraped["scrape_configs"]
    replicas = {name for name in composed["services"] if name.startswith("replica-")}
    assert {f"{name}:8080" for name in replicas} == {*job["static_configs"][0]["targets"]}
    provider = yaml.safe_load(configs["grafana-dashboards"]["content"])["providers"][0]
    targets = [config["target"] for config in composed["services"]["grafana"]["configs"]]
    assert f"{provider['options']['path']}/dashboard.json" in targets


class Lives(BaseHTTPRequestHandler):
    """Answers `/livez` alone, as a service without its database."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/livez" else 503)
        self.end_headers()


def test_the_image_asks_whether_the_service_lives() -> None:
    """On its own port, and through no proxy; one that does not answer is not healthy."""
    text = DOCKERFILE.read_text()
    (command,) = re.findall(r"HEALTHCHECK.*\n +CMD (\[.*\])", text)
    program = [sys.executable, *json.loads(command)[1:]]
    with HTTPServer(("127.0.0.1", 0), Lives) as server:
        port = server.server_port
        environment = {"STRETTO_PORT": str(port), "http_proxy": "http://127.0.0.1:1"}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert 0 == subprocess.run(program, env=environment, check=False).returncode
        server.shutdown()
    done = subprocess.run(program, env=environment, check=False, capture_output=True)
    assert 0 != done.returncode
