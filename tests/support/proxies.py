"""Real reverse proxies as Debian ships them, haproxy and nginx, each on a free port of 127.0.0.1."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Debian has them where only root looks.
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
HAPROXY = shutil.which("haproxy", path=_PATH)
NGINX = shutil.which("nginx", path=_PATH)

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
    with _listener() as listener, tempfile.TemporaryDirectory(prefix="stretto-") as name:
        place = f"fd@{listener.fileno()}"
        file = Path(name, "haproxy.cfg")
        file.write_text(configuration.replace("{listen}", place))
        async with _running([HAPROXY, "-db", "-f", str(file)], pass_fds=[listener.fileno()]):
            yield _url(listener)


@asynccontextmanager
async def running_nginx(configuration: str) -> AsyncIterator[str]:
    """Run nginx with the inside of an `http` block that says `listen {listen};`; yields its URL."""
    assert NGINX is not None, "these tests need nginx: apt-get install nginx"
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
            events {{ worker_connections 4096; }}
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


def _listener() -> socket.socket:
    """Return a socket that haproxy inherits: clients wait in its queue while haproxy starts."""
    return socket.create_server(("127.0.0.1", 0), backlog=1024)


def _reserved() -> socket.socket:
    """Return a socket that holds a port for nginx, which binds it as well, and does not listen."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


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
