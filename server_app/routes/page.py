"""The page at the server's own address, and its files; open, since they hold nothing of the federation."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request, Response

from fedcore.wire.problems import ProblemKind
from server_app.http.audience import ForEverybody
from server_app.rejection import Rejection

INDEX: Final = "index.html"
_REFERENCES: Final = {
    "html": re.compile(rb'((?:href|src)="page/[^"?#]+)(?=")'),
    "js": re.compile(rb'(from "\.[^"?]+)(?=")'),
}
"""Where a file names another one; it is made to name its version too, so that a browser can keep it for ever."""
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_FOR_EVER: Final = "public, max-age=31536000, immutable"
_ASK_AGAIN: Final = "no-cache"
_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "ico": "image/x-icon",
    "js": "text/javascript; charset=utf-8",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}

router = APIRouter(route_class=ForEverybody, include_in_schema=False)
FileName = Annotated[str, Path(max_length=100)]


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent.

    content
        Its bytes.
    media_type
        Its type.
    etag
        Of this content.
    """

    content: bytes = field(repr=False)
    media_type: str
    etag: str


@functools.cache
def page_files() -> Mapping[str, PageFile]:
    """All files of the page by name, read once, with their common version in them."""
    contents = dict(_below(files("server_app.page").joinpath("static")))
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        digest.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(content).digest())
    return {name: _made(name, content, digest.hexdigest()[:12]) for name, content in contents.items()}


def _below(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _below(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in _TYPES:
            yield prefix + entry.name, entry.read_bytes()


def _made(name: str, content: bytes, version: str) -> PageFile:
    kind = name.rpartition(".")[2]
    if kind in _REFERENCES:
        content = _REFERENCES[kind].sub(rb"\1?v=" + version.encode(), content)
    return PageFile(content, _TYPES[kind], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


@router.get("/")
async def page(request: Request) -> Response:
    """The page."""
    return _answer(request, page_files()[INDEX], _ASK_AGAIN)


@router.get("/page/{name:path}")
async def file(request: Request, name: FileName, v: Annotated[str, Query(max_length=64)] = "") -> Response:
    """One of its files; who asks for a version may keep it for ever."""
    known = page_files().get(name)
    if known is None or name == INDEX:
        raise Rejection(ProblemKind.NOT_FOUND, "the page has no such file")
    return _answer(request, known, _FOR_EVER if v else _ASK_AGAIN)


def _answer(request: Request, page_file: PageFile, keeping: str) -> Response:
    headers = {**_HEADERS, "Cache-Control": keeping, "ETag": page_file.etag}
    if request.headers.get("if-none-match") == page_file.etag:
        return Response(status_code=304, headers=headers)
    return Response(page_file.content, media_type=page_file.media_type, headers=headers)
