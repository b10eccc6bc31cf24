"""What `deploy/README.md` describes, as kubectl and systemctl do it without a cluster or a machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

from support.operator_shell import operator
from support.programs import find_program
from support.proxies import DEPLOY
from support.runbook import COMMANDS

if TYPE_CHECKING:
    from pathlib import Path

KUBECTL = find_program("kubectl")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MISSING = "these tests need kubectl (Debian: apt-get install kubernetes-client)"
KUBERNETES = "1.27"
DIGEST = f"sha256:{64 * 'a'}"


def overlay() -> str:
    """Return the overlay that the page shows, with a digest."""
    text = (DEPLOY / "README.md").read_text()
    (shown,) = re.findall(r"^    resources: (?:.+\n)(?:    .+\n)+", text, re.MULTILINE)
    return dedent(shown).replace("sha256:…", DIGEST)


def is_old() -> bool:
    """Whether it is Debian 12's kubectl, whose kustomize has another name for folders."""
    assert KUBECTL is not None, MISSING
    command = (KUBECTL, "version", "--client", "--output=yaml")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(yaml.safe_load(done.stdout)["clientVersion"]["minor"].rstrip("+")) < 21


def built(folder: Path, text: str) -> dict[str, Any]:
    """Return what kubectl makes of an overlay beside `deploy`, by kind."""
    assert KUBECTL is not None, MISSING
    shutil.copytree(DEPLOY, folder / "deploy")
    (folder / "overlay").mkdir()
    if is_old():
        text = text.replace("resources:", "bases:")
    (folder / "overlay/kustomization.yaml").write_text(text)
    command = (KUBECTL, "kustomize", folder / "overlay")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    objects = [*yaml.safe_load_all(done.stdout)]
    for each in objects:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    return {each["kind"]: each for each in objects}


def test_an_overlay_names_the_image_and_the_settings(tmp_path: Path) -> None:
    """By its digest; what it does not name stays, and pods restart where a setting has changed."""
    objects = built(tmp_path, overlay())
    assert {"ConfigMap", "Deployment", "PodDisruptionBudget", "Service"} == {*objects}
    settings = objects["ConfigMap"]
    assert "chat" == settings["data"]["STRETTO_JWT_AUDIENCE"]
    assert settings["metadata"]["name"].startswith("stretto-")
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert f"registry.example/stretto@{DIGEST}" == container["image"]
    assert [{"configMapRef": {"name": settings["metadata"]["name"]}}] == container["envFrom"]


def test_a_second_one_does_the_same_for_the_migration(tmp_path: Path) -> None:
    """Without the settings."""
    text = overlay().partition("configMapGenerator:")[0].replace("/base", "/migrate")
    objects = built(tmp_path, text)
    assert ["Job"] == [*objects]
    (container,) = objects["Job"]["spec"]["template"]["spec"]["containers"]
    assert f"registry.example/stretto@{DIGEST}" == container["image"]


@pytest.mark.parametrize(
    ("old", "new"),
    [("name: stretto\n", "name: settings\n"), ("/base", "/basis"), ("behavior", "behaviour")],
)
def test_a_slip_in_an_overlay_is_noticed(old: str, new: str, tmp_path: Path) -> None:
    """The twin."""
    assert old in overlay()
    with pytest.raises(AssertionError, match=r"Error: |error: |command failed"):
        built(tmp_path, overlay().replace(old, new))


async def test_each_secret_has_the_file_that_its_pods_mount(tmp_path: Path) -> None:
    """What kubectl would send, of the commands of the page."""
    names = ("stretto", "stretto-owner")
    for file in ("database-url", "owner-database-url"):
        (tmp_path / file).write_text("postgresql://app@db.internal/stretto")
    async with operator("secrets of the cluster", tmp_path) as one:
        for name, command in zip(names, COMMANDS["secrets of the cluster"], strict=True):
            more = {command: f"{command} --dry-run=client --output=yaml"}
            secret = yaml.safe_load(await one.run(command, more))
            assert (name, ["database-url"]) == (secret["metadata"]["name"], [*secret["data"]])


async def test_the_service_is_started_with_its_machine_once_it_is_enabled(tmp_path: Path) -> None:
    """In a folder, as for an image of a machine, where nothing runs; the migration never is."""
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    for unit in UNITS:
        shutil.copy(unit, units)
    async with operator("unit", tmp_path) as one:
        (enable,) = COMMANDS["unit"]
        await one.run(enable, {"enable --now": f"--root={tmp_path} enable"})
    assert ["stretto.service"] == [each.name for each in units.glob("*.wants/*")]
