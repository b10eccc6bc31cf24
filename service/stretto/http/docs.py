"""Routes of the API's description: the OpenAPI document and a page that shows it.

The page's files come from an installed package: nothing is fetched from elsewhere, and the page may
not load anything from elsewhere either.
"""

from __future__ import annotations

from typing import Final

import orjson
from aiohttp import web
from swagger_ui_bundle import swagger_ui_path

from stretto.http.openapi import OPENAPI

_FILES: Final = ("swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png")
_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>stretto API</title>
<link rel="icon" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START: Final = (
    'SwaggerUIBundle({url: "openapi.json", dom_id: "#page", deepLinking: true,'
    " tryItOutEnabled: true});\n"
)

_OPENAPI_BYTES: Final = orjson.dumps(OPENAPI)


async def openapi(_: web.Request) -> web.Response:
    """`GET /openapi.json`: the contract as OpenAPI 3.1."""
    return web.Response(body=_OPENAPI_BYTES, content_type="application/json")


async def docs(_: web.Request) -> web.Response:
    """`GET /docs`: the contract for people."""
    return web.Response(text=_PAGE, content_type="text/html", headers=_HEADERS)


async def docs_start(_: web.Request) -> web.Response:
    """`GET /docs/start.js`: starts the page; a file of its own, so that no script is inline."""
    return web.Response(text=_START, content_type="text/javascript", headers=_HEADERS)


async def docs_file(request: web.Request) -> web.StreamResponse:
    """`GET /docs/{file}`: a file of the page."""
    name = request.match_info["file"]
    if name not in _FILES:
        raise web.HTTPNotFound
    return web.FileResponse(swagger_ui_path / name, headers=_HEADERS)
