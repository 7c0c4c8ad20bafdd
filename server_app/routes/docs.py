"""The page that shows the schema: Swagger UI, its files included, from this server alone.

FastAPI's own page loads them from elsewhere. They come with the package fastapi-offline.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final, Literal

from fastapi import APIRouter, Response

from server_app.http.audience import ForEverybody

router = APIRouter(prefix="/docs", route_class=ForEverybody, include_in_schema=False)

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_TYPES: Final = {"js": "text/javascript", "css": "text/css", "png": "image/png"}
_PAGE: Final = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>fedcore</title>
<link rel="icon" href="docs/favicon.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START: Final = 'SwaggerUIBundle({url: "openapi.json", dom_id: "#swagger-ui", validatorUrl: null});\n'


@router.get("")
async def page() -> Response:
    """The page."""
    return Response(_PAGE, media_type="text/html", headers=_HEADERS)


@router.get("/start.js")
async def start() -> Response:
    """What starts it; a script within the page would need a hole in its policy."""
    return Response(_START, media_type=_TYPES["js"], headers=_HEADERS)


@router.get("/{name}")
async def file(name: Literal["swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"]) -> Response:
    """A file of Swagger UI."""
    content = files("fastapi_offline").joinpath("static", name).read_bytes()
    return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)
