"""Real reverse proxies as Debian ships them, haproxy and nginx, each on a free port of 127.0.0.1.

Their configurations are ordinary ones, or the sample files of `deploy/`.
"""

from __future__ import annotations

import asyncio
import re
import socket
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from support.certificate import make_certificate
from support.programs import find_program
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

HAPROXY = find_program("haproxy")
NGINX = find_program("nginx")

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
# The instances in our sample files.
INSTANCES: Final = ("10.0.0.11:8080", "10.0.0.12:8080")
# Of haproxy's sample: a name within this machine, where several of it run at once.
NO_INSTANCE: Final = "abns@stretto-no-instance"
TWICE: Final = (*INSTANCES, NO_INSTANCE)

# An ordinary one: only what haproxy warns without.
HAPROXY_DEFAULTS = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
"""


@asynccontextmanager
async def running_haproxy(configuration: str) -> AsyncIterator[str]:
    """Run haproxy with a configuration that says `bind {listen}`; yields its URL."""
    assert HAPROXY is not None, "these tests need haproxy: apt-get install haproxy"
    with _reserved() as reserved, tempfile.TemporaryDirectory(prefix="stretto-") as name:
        host, port = reserved.getsockname()
        file = Path(name, "haproxy.cfg")
        # A listener that it inherited would not get `tcp-ut`.
        file.write_text(configuration.replace("{listen}", f"{host}:{port}"))
        async with _running([HAPROXY, "-db", "-f", str(file)]) as process:
            await until(lambda: process.returncode is not None or listens(host, port))
            assert process.returncode is None, "haproxy has not started"
            yield _url(reserved)


@asynccontextmanager
async def running_nginx(configuration: str) -> AsyncIterator[str]:
    """Run nginx with the inside of an `http` block that says `listen {listen};`; yields its URL."""
    assert NGINX is not None, "these tests need nginx: apt-get install nginx"
    files, connections = nginx_lines()
    with _reserved() as reserved, tempfile.TemporaryDirectory(prefix="stretto-") as name:
        host, port = reserved.getsockname()
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{kind}_temp_path {name}/{kind};\n" for kind in kinds)
        file = Path(name, "nginx.conf")
        file.write_text(
            f"""daemon off;
            master_process off;
            pid {name}/pid;
            error_log stderr notice;
            {files}
            events {{ {connections} }}
            http {{
                access_log off;
                {temporary}
                {configuration.replace("{listen}", f"{host}:{port} reuseport")}
            }}"""
        )
        command = [NGINX, "-p", name, "-e", "stderr", "-c", str(file)]
        async with _running(command, stderr=asyncio.subprocess.PIPE) as process:
            assert process.stderr is not None
            # It says so after it listens.
            while b"event method" not in (line := await process.stderr.readline()):
                assert line, "nginx has not started"
            reading = asyncio.create_task(process.stderr.read(), name="nginx-log")
            yield _url(reserved)
        await reading


def nginx_lines() -> tuple[str, str]:
    """Return the two lines that the README has for nginx.conf: of files, and of connections."""
    block = (
        r"^    # /etc/nginx/nginx.conf.*\n +(worker_rlimit_nofile .+)\n +(worker_connections .+)\n$"
    )
    ((files, connections),) = re.findall(block, (DEPLOY / "README.md").read_text(), re.MULTILINE)
    return files, connections


def haproxy_before(*urls: str) -> str:
    """Return the configuration of an ordinary haproxy that passes requests on to these services."""
    servers = "".join(
        f"    server s{number} {url.removeprefix('http://')}\n" for number, url in enumerate(urls)
    )
    return f"{HAPROXY_DEFAULTS}\nlisten front\n    bind {{listen}}\n{servers}"


def nginx_before(*urls: str) -> str:
    """Return the configuration of an ordinary nginx that passes requests on to these services."""
    servers = "".join(f"server {url.removeprefix('http://')};\n" for url in urls)
    return f"""
        upstream services {{ {servers} keepalive 16; }}
        server {{
            listen {{listen}};
            location / {{
                proxy_pass http://services;
                proxy_http_version 1.1;
                proxy_set_header Connection "";
            }}
        }}"""


@asynccontextmanager
async def running_sample(
    proxy: str,
    folder: Path,
    *urls: str,
    clients: Path | None = None,
    paces: Mapping[str, str] | None = None,
) -> AsyncIterator[str]:
    """Run haproxy or nginx from our sample file, before two services; yields its https URL.

    Its certificate is `server.crt` of the folder, which holds its logs too. With `clients`, it asks
    for certificates of that authority, by the lines that are commented out. `paces` replaces texts.
    """
    certificate, key = make_certificate(folder)
    both = folder / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    services = {
        instance: url.removeprefix("http://") for instance, url in zip(INSTANCES, urls, strict=True)
    } | dict(paces or {})
    if proxy == "haproxy":
        places = {
            "bind :443": "bind {listen}",
            "/etc/haproxy/stretto.pem": str(both),
            NO_INSTANCE: f"abns@stretto-{uuid4()}",
            # A test has no nine seconds for the checks that fail. One that succeeds may take its time: by
            # default it has as long as lies between two of them.
            "default-server check inter 2s fastinter 500ms": "timeout check 10s\n    default-server check inter 100ms",
        }
        if clients is not None:
            places |= _asking_for_certificates(DEPLOY / "haproxy/haproxy.cfg", clients)
        running = running_haproxy(_placed(DEPLOY / "haproxy/haproxy.cfg", places | services))
    else:
        places = {
            "listen 443": "listen {listen}",
            "/etc/nginx/stretto.crt": str(certificate),
            "/etc/nginx/stretto.key": str(key),
            "/var/log/nginx/stretto.log": str(folder / "access.log"),
            "/var/log/nginx/stretto-error.log": str(folder / "error.log"),
        }
        if clients is not None:
            places["# ssl_client_certificate /etc/nginx/clients.crt;"] = (
                f"ssl_client_certificate {clients};"
            )
            places["# ssl_verify_client on;"] = "ssl_verify_client on;"
        running = running_nginx(_placed(DEPLOY / "nginx/stretto.conf", places | services))
    async with running as url:
        yield url.replace("http://", "https://")


def _asking_for_certificates(sample: Path, clients: Path) -> Mapping[str, str]:
    """Return what to replace in haproxy's sample: the commented words go to the end of the line."""
    found = re.search(r"(alpn \S+\n)(?:.*\n)\s+#\s+(ca-file .+)\n", sample.read_text())
    assert found is not None
    bind, words = found[1], found[2]
    asking = words.replace("/etc/haproxy/clients.crt", str(clients))
    return {bind: f"{bind.rstrip()} {asking}\n"}


def _placed(sample: Path, places: Mapping[str, str]) -> str:
    """Return the text of a sample file with other places.

    Each stands there once; an instance twice, for requests and for sessions, and so does haproxy's own
    socket, which it binds and connects to.
    """
    text = sample.read_text()
    for old, new in places.items():
        assert text.count(old) == 1 + (old in TWICE), old
        text = text.replace(old, new)
    return text


def _reserved() -> socket.socket:
    """Return a socket that holds a port for a proxy, which binds it as well, and does not listen."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def listens(host: str, port: int) -> bool:
    """Whether something listens there: haproxy opens its ports one after the other."""
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()
    return f"http://{host}:{port}"


@asynccontextmanager
async def _running(command: list[str], **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(*command, **options)
    try:
        yield process
        assert process.returncode is None, "the proxy has ended by itself"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
