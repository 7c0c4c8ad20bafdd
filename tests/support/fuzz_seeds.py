"""What goes over the wire in one federation: a secure exchange and a plain one, recorded in this process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import numpy as np
from fastapi.routing import APIRoute

from fedcore.federation import FederationFolder, Policy, provision
from fedcore.state import ModelState
from server_app.application import Application
from server_app.routes import client, exchange_steps, operator

from .members import Member
from .serverside import site


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One request and its answer. path: with the query."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int
    answer: bytes


@dataclass(slots=True)
class Corpus:
    """All of them. folder: of the federation. models: what was said, by the model that a route reads or answers."""

    folder: FederationFolder
    recorded: list[Recorded] = field(default_factory=list)
    models: dict[type, list[bytes]] = field(default_factory=dict)

    def bodies(self, ending: str, *, of_answers: bool = False) -> tuple[bytes, ...]:
        """What was said on addresses that end so."""
        return tuple(
            found
            for one in self.recorded
            if one.path.partition("?")[0].endswith(ending) and (found := one.answer if of_answers else one.body)
        )

    def note_models(self) -> None:
        """Sort what was said by the models that the routes read and answer with."""
        listed = (*client.router.routes, *exchange_steps.router.routes, *operator.router.routes)
        routes = [route for route in listed if isinstance(route, APIRoute)]
        for one in self.recorded:
            path = one.path.partition("?")[0]
            for route in routes:
                if one.method not in (route.methods or ()) or not route.path_regex.match(path) or one.status >= 300:
                    continue
                for form, text in ((route.body_field, one.body), (route.response_field, one.answer)):
                    kind = form.field_info.annotation if form is not None else None
                    if isinstance(kind, type) and text[:1] == b"{":
                        self.models.setdefault(kind, []).append(text)
                break


class _Recording(httpx.AsyncBaseTransport):
    def __init__(self, application: Application, corpus: Corpus) -> None:
        self._inner = httpx.ASGITransport(app=application.asgi)
        self._corpus = corpus

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        response = await self._inner.handle_async_request(request)
        answer = await response.aread()
        self._corpus.recorded.append(
            Recorded(
                method=request.method,
                path=request.url.raw_path.decode(),
                headers=dict(request.headers),
                body=body,
                status=response.status_code,
                answer=answer,
            )
        )
        return response


def record(folder: Path) -> Corpus:
    """Provision a federation of four in `folder`, and record a run of each kind."""
    made = provision(
        folder / "fed",
        name="testing",
        clients=4,
        now=datetime.now(UTC),
        hosts=["127.0.0.1"],
        policy=Policy.own(4, allow_plain=True),
    )
    corpus = Corpus(folder=made)
    asyncio.run(_record(corpus, folder))
    return corpus


async def _record(corpus: Corpus, folder: Path) -> None:
    model = ModelState.from_arrays({"weight": np.ones((5, 3), np.float32), "counter": np.array(3, np.int64)})
    async with site(corpus.folder, folder, transport=lambda application: _Recording(application, corpus)) as here:
        for aggregation in ("secure", "plain"):
            run, app = await here.begin({"aggregation": aggregation})
            asked = asyncio.create_task(app.exchange(model, [1, 2, 3, 4]))
            members = await here.enter_all()
            await asyncio.gather(*(_take_part(member, aggregation) for member in members))
            await asked
            for path in ("/v1/clients", f"/v1/runs/{run}", "/v1/operator/rosters", "/v1/operator/transcript"):
                await here.operator("GET", path)
            await here.finish(run, app, model)
            await here.operator("GET", f"/v1/runs/{run}/files")
        await members[0].ask("GET", "/v1/transcript?after=")
        await members[0].ask("GET", "/v1/rosters?after=1")
        corpus.note_models()


async def _take_part(member: Member, aggregation: str) -> None:
    if aggregation == "plain":
        await member.plain()
        return
    await member.secure(until="upload")
    body, manifest = member.vector()
    await member.send(body)
    await member.ask("GET", f"{member.at('update/parts')}?size={manifest.size}")
    await member.put("manifest", manifest)
    await member.sign()
    await member.unmask()
