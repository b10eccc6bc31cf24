"""Routes of the API's description: the OpenAPI document and a page that shows it.

The page's files come from an installed package. Neither the service nor the page loads anything
from another host.
"""

from __future__ import annotations

from typing import Final

from aiohttp import hdrs, web
from swagger_ui_bundle import swagger_ui_path

from stretto.http.openapi import DOCUMENT
from stretto.http.problems import COMMON_FIELDS

# Served from memory: an open file per client would be a second descriptor without a limit.
_FILES: Final = {
    name: (media_type, (swagger_ui_path / name).read_bytes())
    for name, media_type in (
        ("swagger-ui.css", "text/css"),
        ("swagger-ui-bundle.js", "text/javascript"),
        ("favicon-32x32.png", "image/png"),
    )
}
# Written at once; the largest file has 1.5 MB. Clients that do not read share its bytes.
_CHUNK_BYTES: Final = 64 * 1024
_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = {
    **COMMON_FIELDS,
    "Content-Security-Policy": _SECURITY_POLICY,
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


async def openapi(_: web.Request) -> web.Response:
    """`GET /openapi.json`: the contract as OpenAPI 3.1."""
    return web.Response(body=DOCUMENT, content_type="application/json")


async def docs(_: web.Request) -> web.Response:
    """`GET /docs`: the contract as a page."""
    return web.Response(text=_PAGE, content_type="text/html", headers=_HEADERS)


async def docs_start(_: web.Request) -> web.Response:
    """`GET /docs/start.js`: starts the page; a separate file, so that no script is inline."""
    return web.Response(text=_START, content_type="text/javascript", headers=_HEADERS)


async def docs_file(request: web.Request) -> web.StreamResponse:
    """`GET /docs/{file}`: a file of the page."""
    name = request.match_info["file"]
    if name not in _FILES:
        raise web.HTTPNotFound
    media_type, content = _FILES[name]
    response = web.StreamResponse(headers={**_HEADERS, hdrs.CONTENT_TYPE: media_type})
    response.content_length = len(content)
    await response.prepare(request)
    if request.method == hdrs.METH_GET:
        shared = memoryview(content)
        for start in range(0, len(content), _CHUNK_BYTES):
            await response.write(shared[start : start + _CHUNK_BYTES])
    return response
