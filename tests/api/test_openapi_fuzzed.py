"""Schemathesis makes up requests from the OpenAPI document, good and bad, and judges the answers."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from support.api_client import token_of
from support.service_process import ServiceProcess

CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
EXAMPLES_MAX = 40
# The number of examples bounds the work; this notices one that hangs, also on a busy machine.
SECONDS_MAX = 240


@pytest.mark.timeout(SECONDS_MAX + 30)
async def test_every_answer_to_every_request_keeps_the_contract(
    server_url: str, tmp_path: Path
) -> None:
    """No status, header, type or document that is not declared, no wrong request accepted, no 5xx."""
    # Ten years: the time that its configuration names is not too old.
    settings = {"DATABASE_URL": server_url, "ATTEMPT_AGE_MAX": "315360000"}
    async with ServiceProcess(settings) as service:
        exit_code, output = await tried_out(service.url, tmp_path)
    assert exit_code == 0, output
    tried = re.search(r"(\d+) generated, (\d+) passed", output)
    assert tried is not None, output
    assert int(tried[2]) > 500
    assert "15 selected / 15 total" in output
    assert not any(b"request.crashed" in line for line in service.log)


async def tried_out(url: str, folder: Path) -> tuple[int | None, str]:
    """Run it; return its exit code and what it says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", CONFIGURATION),
        *("run", f"{url}/openapi.json", "--checks", "all", "--continue-on-failure"),
        *("--header", f"Authorization: Bearer {token_of('alice')}"),
        *("--seed", "1", "--max-examples", str(EXAMPLES_MAX), "--no-color"),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(SECONDS_MAX):
        output, _ = await process.communicate()
    return process.returncode, output.decode()
