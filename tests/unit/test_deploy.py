"""The files of `deploy/`: they follow their schemas, and say what the service's settings say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from stretto.commands.help import EXIT_USAGE
from stretto.config import FILE_SUFFIX, PREFIX, SETTINGS, Settings
from stretto.creation.creator import WAIT_SECONDS_MAX
from stretto.environment import read_settings
from stretto.http.app import ROUTES
from stretto.http.event_streams import UNACKNOWLEDGED_SECONDS
from stretto.http.front.plain_requests import PlainRequests
from stretto.http.front.serving import KEEP_ALIVE_SECONDS
from stretto.http.readiness import PING_SECONDS
from stretto.start_errors import ConfigurationError
from stretto.supervisor import STOP_SECONDS
from support.programs import find_program
from support.proxies import DEPLOY
from support.runbook import NOT_HERE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KUSTOMIZATIONS = sorted((DEPLOY / "kubernetes").rglob("kustomization.yaml"))
OBJECTS = sorted({*(DEPLOY / "kubernetes").rglob("*.yaml")} - {*KUSTOMIZATIONS})
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
# The oldest that has all that our objects use, and the newest whose schemas we have.
KUBERNETES = ("1.27", "1.37")
SYSTEMD_ANALYZE = find_program("systemd-analyze")
MISSING = "these tests need systemd-analyze: apt-get install systemd"
HAPROXY = (DEPLOY / "haproxy/haproxy.cfg").read_text()
NGINX = (DEPLOY / "nginx/stretto.conf").read_text()


def validated(*objects: Path) -> tuple[int, str]:
    """Check objects of Kubernetes against its schemas, strictly; return exit code and output."""
    versions = [word for version in KUBERNETES for word in ("--kubernetes-version", version)]
    done = subprocess.run(
        [sys.executable, "-m", "kubernetes_validate", "--strict", *versions, *objects],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_every_object_follows_the_schemas_of_kubernetes() -> None:
    """An object of an unknown kind would only be a warning, so those that pass are counted."""
    code, said = validated(*OBJECTS)
    assert (0, len(OBJECTS) * len(KUBERNETES)) == (code, said.count(" passed for ")), said


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("minReadySeconds:", "minReadySecond:"),
        ("    enableServiceLinks: false", "    enableServiceLink: false"),
        ("periodSeconds: 2", "periodSeconds: 2s"),
    ],
)
def test_a_slip_in_an_object_is_noticed(old: str, new: str, tmp_path: Path) -> None:
    """The twin."""
    text = (DEPLOY / "kubernetes/base/deployment.yaml").read_text()
    assert old in text
    wrong = tmp_path / "deployment.yaml"
    wrong.write_text(text.replace(old, new))
    code, said = validated(wrong)
    assert 1 == code, said


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: path.parent.name)
def test_a_kustomization_names_every_object_beside_it(path: Path) -> None:
    """And no other; nothing else of it can be misspelt."""
    kustomization = yaml.safe_load(path.read_text())
    assert {"apiVersion", "kind", "resources", "configMapGenerator"} >= kustomization.keys()
    beside = sorted({each.name for each in path.parent.iterdir()} - {path.name})
    assert beside == sorted(kustomization["resources"])


def objects() -> Iterator[dict[str, Any]]:
    """Return all objects of Kubernetes."""
    yield from (yaml.safe_load(path.read_text()) for path in OBJECTS)


def pods() -> Iterator[dict[str, Any]]:
    """Return the pods of all objects that have some."""
    for each in objects():
        if "template" in each["spec"]:
            yield each["spec"]["template"]["spec"]


def deployed() -> dict[str, Any]:
    """Return the service's pod."""
    (pod,) = (pod for pod in pods() if "terminationGracePeriodSeconds" in pod)
    return pod


def test_pods_meet_the_restricted_standard_of_kubernetes() -> None:
    """And write nothing, and know no token of the cluster."""
    assert 2 == len([*pods()])
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"]
        assert {"type": "RuntimeDefault"} == pod["securityContext"]["seccompProfile"]
        assert not pod["automountServiceAccountToken"]
        (container,) = pod["containers"]
        assert {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        } == container["securityContext"]
        assert "memory" in container["resources"]["limits"]


def test_pods_run_as_the_account_of_the_image() -> None:
    """Whose files that are mounted are for its group alone."""
    (uid,) = re.findall(r"useradd .*--uid (\d+)", (DEPLOY.parent / "Dockerfile").read_text())
    for pod in pods():
        assert {int(uid)} == {pod["securityContext"][name] for name in ("runAsUser", "fsGroup")}
        assert [0o440] == [volume["secret"]["defaultMode"] for volume in pod["volumes"]]


def test_selectors_find_the_pods_of_the_deployment() -> None:
    """Of service, disruption budget and spread; the job's pod is none of them."""
    by_kind = {each["kind"]: each["spec"] for each in objects()}
    labels = by_kind["Deployment"]["template"]["metadata"]["labels"]
    assert labels == by_kind["Service"]["selector"]
    assert labels == by_kind["Deployment"]["selector"]["matchLabels"]
    assert labels == by_kind["PodDisruptionBudget"]["selector"]["matchLabels"]
    for spread in deployed()["topologySpreadConstraints"]:
        assert labels == spread["labelSelector"]["matchLabels"]
    assert labels != by_kind["Job"]["template"]["metadata"]["labels"]


def test_no_service_of_the_cluster_becomes_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links of a Service that is called stretto would keep the service from starting."""
    assert [False] * 2 == [pod["enableServiceLinks"] for pod in pods()]
    monkeypatch.setenv("STRETTO_SERVICE_HOST", "10.96.0.7")
    with pytest.raises(ConfigurationError, match="STRETTO_SERVICE_HOST: unknown setting"):
        read_settings()


def unknown_settings(text: str) -> list[str]:
    """Return what looks like a setting and is none."""
    names = {*re.findall(r"STRETTO_[A-Z_]+", text)}
    known = {PREFIX + name.upper() for name in SETTINGS}
    return sorted(name for name in names if name.removesuffix(FILE_SUFFIX) not in known)


def test_every_setting_that_is_named_exists() -> None:
    """Also in comments; the one that does not is named as a warning."""
    texts = [path.read_text() for path in DEPLOY.rglob("*") if path.is_file()]
    assert len(texts) > 10
    assert ["STRETTO_SERVICE_HOST"] == unknown_settings("".join(texts))
    assert ["STRETTO_PROT"] == unknown_settings("STRETTO_PROT=1 STRETTO_PORT_FILE=2")


def of_pod(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return a pod's environment; every file of a setting is of a secret that is mounted."""
    (container,) = pod["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    (mount,) = container["volumeMounts"]
    assert [mount["name"]] == [volume["name"] for volume in pod["volumes"]]
    assert all(Path(path).parent == Path(mount["mountPath"]) for path in environment.values())
    if "envFrom" in container:
        base = yaml.safe_load((DEPLOY / "kubernetes/base/kustomization.yaml").read_text())
        (generator,) = base["configMapGenerator"]
        assert [{"configMapRef": {"name": generator["name"]}}] == container["envFrom"]
        environment |= dict(literal.split("=", 1) for literal in generator["literals"])
    return environment


def of_unit(unit: Path) -> dict[str, str]:
    """Return a unit's environment; every file of a setting is one of its credentials."""
    text = unit.read_text()
    environment = dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE))
    credentials = re.findall(r"^LoadCredential=([\w-]+):", text, re.MULTILINE)
    assert [f"%d/{name}" for name in credentials] == [*environment.values()]
    assert "EnvironmentFile=/etc/stretto/stretto.env\n" in text
    lines = (DEPLOY / "systemd/stretto.env").read_text().splitlines()
    return environment | dict(line.split("=", 1) for line in lines if line[0] != "#")


ENVIRONMENTS = {
    **{f"pod {number}": of_pod(pod) for number, pod in enumerate(pods())},
    **{unit.name: of_unit(unit) for unit in UNITS},
}


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_the_service_takes_the_settings(
    environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As they are, with a database's URL in the file."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    secret = tmp_path / "secret"
    secret.write_text("postgresql://app@db.internal/stretto\n")
    for name, value in environment.items():
        monkeypatch.setenv(name, str(secret) if name.endswith(FILE_SUFFIX) else value)
    settings = read_settings()
    assert "postgresql://app@db.internal/stretto" == settings.database_url
    # What the graces below are computed from.
    assert Settings().drain_seconds == settings.drain_seconds


def test_there_is_time_for_the_drain_and_the_stop() -> None:
    """Before anything is killed."""
    needed = Settings().drain_seconds + STOP_SECONDS
    assert deployed()["terminationGracePeriodSeconds"] > needed
    service = (DEPLOY / "systemd/stretto.service").read_text()
    (stop_seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", service, re.MULTILINE)
    assert int(stop_seconds) > needed


def test_a_drain_is_noticed_before_it_is_over() -> None:
    """By readiness probes and by haproxy's first check; nginx makes none."""
    probe = deployed()["containers"][0]["readinessProbe"]
    between, _, _ = checks()
    for seconds in (probe["periodSeconds"] * probe["failureThreshold"], between):
        assert seconds < Settings().drain_seconds


def test_an_instance_whose_database_is_silent_is_not_taken_for_one_that_hangs() -> None:
    """It says that it is not ready before haproxy gives a check up."""
    between, _, _ = checks()
    assert PING_SECONDS < between


def test_a_hung_instance_is_noticed_when_the_readme_says() -> None:
    """By haproxy: each check waits for as long as lies between two that succeed."""
    between, behind_failed, failed_max = checks()
    least = failed_max * between + (failed_max - 1) * behind_failed
    said = f"counts as gone after {least:g} to {least + between:g} s"
    assert said in (DEPLOY / "README.md").read_text()


def checks() -> tuple[float, float, int]:
    """Return haproxy's seconds between two checks, behind one that failed, and how many must fail."""
    pattern = r"check inter (\d+)s fastinter (\d+)ms fall (\d+)"
    ((between, behind_failed, failed_max),) = re.findall(pattern, HAPROXY)
    return int(between), int(behind_failed) / 1000, int(failed_max)


def test_probes_ask_what_the_service_answers() -> None:
    """Restarts follow liveness alone, routing readiness, on the port that is served."""
    pod = deployed()["containers"][0]
    paths = {
        name: pod[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "liveness", "readiness")
    }
    assert {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"} == paths
    (checked,) = re.findall(r"option httpchk GET (\S+) HTTP/1.1\n", HAPROXY)
    (host,) = re.findall(r"http-check send hdr Host (\S+)\n", HAPROXY)
    assert "/readyz" == checked
    # As haproxy writes it: in this form a flood of checks does not keep it waiting.
    head = f"GET {checked} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
    assert PlainRequests().read(head.encode()) is not None
    assert {*paths.values(), "/v1/events"} <= {route.path for route in ROUTES}
    assert [{"name": "http", "containerPort": Settings().port}] == pod["ports"]
    assert {"http"} == {pod[name]["httpGet"]["port"] for name in pod if name.endswith("Probe")}
    (service,) = (each["spec"] for each in objects() if each["kind"] == "Service")
    assert ["http"] == [port["targetPort"] for port in service["ports"]]


def test_proxies_wait_longer_than_the_service_is_silent() -> None:
    """For an outcome, or between two heartbeats; and shorter than it keeps an idle connection."""
    texts = re.findall(r"timeout (?:client|server|tunnel) (\d+)s", HAPROXY)
    texts += re.findall(r"proxy_read_timeout (\d+)s", NGINX)
    assert 6 == len(texts)
    silent_seconds = max(WAIT_SECONDS_MAX, Settings().streams.heartbeat_seconds)
    assert all(silent_seconds < int(text) < KEEP_ALIVE_SECONDS for text in texts)


def test_haproxy_gives_a_client_up_that_has_vanished_when_the_service_does() -> None:
    """The service itself sees the proxy's end of the connection alone."""
    (seconds,) = re.findall(r"^    bind .* tcp-ut (\d+)s ", HAPROXY, re.MULTILINE)
    assert UNACKNOWLEDGED_SECONDS == int(seconds)


def test_the_environment_of_the_units_is_made_as_that_of_the_image() -> None:
    """But for the embedded servers, which it has besides."""
    text = (DEPLOY.parent / "Dockerfile").read_text()
    made = " ".join(text.replace("\\\n", " ").replace("--no-cache-dir", "").split())
    commands = [command for command in NOT_HERE if "/opt/stretto" in command]
    assert 3 == len(commands)
    for command in commands:
        assert command.replace("python3", "python").replace("run.txt", "image.txt") in made


def verified(folder: Path, changes: Mapping[str, str]) -> str:
    """Return what systemd says of the units; its program stands in for ours, which is elsewhere."""
    assert SYSTEMD_ANALYZE is not None, MISSING
    changes = {"/opt/stretto/bin/stretto": sys.executable, **changes}
    units = []
    for unit in UNITS:
        text = unit.read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        units.append(folder / unit.name)
        units[-1].write_text(text)
    done = subprocess.run(
        [SYSTEMD_ANALYZE, "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr + "failed" * done.returncode


def test_systemd_has_nothing_to_say_of_the_units(tmp_path: Path) -> None:
    """A misspelt directive is only a warning there."""
    assert 2 == len(UNITS)
    assert "" == verified(tmp_path, {})


@pytest.mark.parametrize(
    ("old", "new"),
    [("DynamicUser", "DynamicUsers"), ("TimeoutStopSec=30", "TimeoutStopSec=long")],
)
def test_a_slip_in_a_unit_is_noticed(old: str, new: str, tmp_path: Path) -> None:
    """The twin."""
    assert "ignoring" in verified(tmp_path, {old: new})


def test_a_unit_starts_nothing_again_that_needs_an_operator_first() -> None:
    """Wrong settings, and a schema that does not fit; a database that is away may come back."""
    service = (DEPLOY / "systemd/stretto.service").read_text()
    assert f"\nRestartPreventExitStatus={EXIT_USAGE}\n" in service


def test_a_unit_allows_the_descriptors_of_its_connections() -> None:
    """And some for the database, the log and the files that are read."""
    service = (DEPLOY / "systemd/stretto.service").read_text()
    (files,) = re.findall(r"^LimitNOFILE=(\d+)$", service, re.MULTILINE)
    assert int(files) > Settings().limits.connections_max + 1000
