"""A made-up federation behind the addresses that the page asks, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import threading
from collections.abc import AsyncIterator, Iterator

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fedcore.wire.watch import SESSION_COOKIE
from server_app.members.sessions import OWN_HEADER
from server_app.routes import page

from .made_up_world import BEGAN, World
from .serving import serving

OPERATOR, VIEWER = "the-token-of-an-operator", "the-token-of-a-link"


class _Site:
    """The addresses of one world; `beat` is set whenever something has changed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sessions: dict[str, str] = {}
        self.asked: list[str] = []

    def role(self, request: Request) -> str | None:
        return self.sessions.get(request.cookies.get(SESSION_COOKIE, ""))

    async def sign_in(self, request: Request) -> Response:
        token = (await request.json())["token"]
        role = {OPERATOR: "operator", VIEWER: "viewer"}.get(token)
        if role is None:
            return _problem(401, "the token is wrong")
        cookie = secrets.token_hex(16)
        self.sessions[cookie] = role
        answer = Response(status_code=204)
        answer.set_cookie(SESSION_COOKIE, cookie, httponly=True, samesite="strict")
        return answer

    async def session(self, request: Request) -> Response:
        if (role := self.role(request)) is None:
            return _problem(401, "sign in first")
        return JSONResponse({"role": role, "federation": "Heart study", "expires": "2026-11-23T09:00:00Z"})

    async def sign_out(self, request: Request) -> Response:
        self.sessions.clear()
        return Response(status_code=204)

    async def read(self, request: Request) -> Response:
        if self.role(request) is None:
            return _problem(401, "sign in first")
        world, what = self.world, request.path_params.get("what", "")
        match what:
            case "rounds":
                return JSONResponse(world.charts())
            case "marks":
                return JSONResponse(world.marks(int(request.query_params.get("last", "60"))))
            case "clients":
                return JSONResponse(world.standings())
            case "saw":
                return JSONResponse(world.saw())
        after = int(request.query_params.get("after", "0"))
        settings = {"min-clients": 9, "clipping": "repeat"}
        extra = {"run_config": {"num-server-rounds": world.planned, "lr": 0.05}, "settings": settings}
        return JSONResponse({**world.info(), **extra, "events": world.events[after:]})

    async def runs(self, request: Request) -> Response:
        return JSONResponse({"runs": [self.world.info(), *self.world.older()], "more": False})

    async def members(self, request: Request) -> Response:
        return JSONResponse(self.world.members())

    async def links(self, request: Request) -> Response:
        if request.method == "GET":
            return JSONResponse({"links": self.world.links})
        if request.method == "DELETE":
            self.world.links = [link for link in self.world.links if link["id"] != request.path_params["id"]]
            return Response(status_code=204)
        asked = await request.json()
        link = {
            "id": secrets.token_hex(4),
            "label": asked["label"],
            "created": BEGAN.isoformat(),
            "expires": "2026-12-22T09:00:00Z",
        }
        self.world.links.append(link)
        return JSONResponse({**link, "token": VIEWER, "url": f"{request.base_url}#view={VIEWER}"})

    async def act(self, request: Request) -> Response:
        if request.headers.get(OWN_HEADER) != "1" or self.role(request) != "operator":
            return _problem(403, "only operators may do this")
        self.asked.append(request.path_params["what"])
        if request.path_params["what"] == "cancel":
            self.world.status = "cancelled"
            self.world.add({"kind": "ended", "status": "cancelled", "reason": ""})
        if request.path_params["what"] == "resume":
            self.world.status = "running"
            self.world.add({"kind": "resumed", "steps": 0, "why": "the operator resumed it"})
        return JSONResponse({**self.world.info(), "events": []})

    async def live(self, request: Request) -> Response:
        after = int(request.query_params.get("after", "0"))
        return StreamingResponse(self._stream(after), media_type="text/event-stream")

    async def _stream(self, sent: int) -> AsyncIterator[str]:
        yield ": hello\n\n"
        while True:
            for recorded in self.world.events[sent:]:
                sent = recorded["seq"]
                yield f"id: {sent}\nevent: {recorded['event']['kind']}\ndata: {json.dumps(recorded)}\n\n"
            await asyncio.sleep(0.05)

    async def live_all(self, request: Request) -> Response:
        async def stream() -> AsyncIterator[str]:
            while True:
                runs = {"runs": [self.world.info(), *self.world.older()], "more": False}
                yield f"event: runs\ndata: {json.dumps(runs)}\n\n"
                await asyncio.sleep(1.0)

        return StreamingResponse(stream(), media_type="text/event-stream")


def _problem(status: int, detail: str) -> JSONResponse:
    return JSONResponse({"type": "about:blank", "title": detail, "status": status, "detail": detail}, status)


def _app(site: _Site) -> FastAPI:
    app = FastAPI(
        openapi_url=None,
        routes=[
            Route("/v1/session", site.sign_in, methods=["POST"]),
            Route("/v1/session", site.session),
            Route("/v1/session", site.sign_out, methods=["DELETE"]),
            Route("/v1/runs", site.runs),
            Route("/v1/clients", site.members),
            Route("/v1/links", site.links, methods=["GET", "POST"]),
            Route("/v1/links/{id}", site.links, methods=["DELETE"]),
            Route("/v1/live", site.live_all),
            Route("/v1/runs/{run}/live", site.live),
            Route("/v1/runs/{run}/{what}", site.act, methods=["POST"]),
            Route("/v1/runs/{run}", site.read),
            Route("/v1/runs/{run}/{what}", site.read),
        ],
    )
    app.include_router(page.router)  # the page and its files, as the server sends them
    return app


@contextlib.contextmanager
def made_up_page(world: World, port: int) -> Iterator[str]:
    """Serve a world in a thread while the context lasts; its address."""
    config = uvicorn.Config(
        _app(_Site(world)), host="127.0.0.1", port=port, log_level="critical", lifespan="off", ws="none"
    )
    started, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(config):
            started.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    started.wait(10)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        over.set()
        thread.join()
