"""Requests made of the server's own OpenAPI schema, by schemathesis, sent by everybody who may call it.

Every answer has to be documented: its status, its content type, its content. `wait` is cut to nothing, and half of the
requests are about a run and an exchange that are really there.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import numpy as np
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from fedcore.federation import FederationFolder
from fedcore.state import ModelState

from .members import Member
from .serverside import Site, site

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip
CALLERS = ("nobody", "operator", "client", "signed in", "viewer")
DOCUMENTED_FAILURES = (503, 507)
"""The server takes no more for now, or has no room: said so on purpose, and documented."""


@dataclass(slots=True)
class Prober:
    """A site with an open exchange, and who sends requests to it. cookies: by caller. answers: how often which."""

    site: Site
    loop: asyncio.AbstractEventLoop
    run: str
    cookies: dict[str, str]
    answers: Counter[int] = field(default_factory=Counter)

    def operations(self) -> list[Any]:
        """All operations of the schema."""
        schema = self.site.application.fastapi.openapi()
        return [found.ok() for found in schemathesis.openapi.from_dict(schema).get_all_operations()]

    def probe(self, operation: Any, *, examples: int) -> None:
        """Send generated requests for one operation; raises what does not conform."""
        cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))

        # Mostly by who may: others are turned away at the door.
        callers = st.sampled_from((*CALLERS, *([caller_of(operation)] * 6)))

        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(cases, callers, st.booleans())
        def conforms(case: Any, caller: str, real: bool) -> None:
            if real and case.path_parameters and "run" in case.path_parameters:
                case.path_parameters["run"] = self.run
                if "exchange" in case.path_parameters:
                    case.path_parameters["exchange"] = 1
            if case.query and "wait" in case.query:
                case.query["wait"] = 0
            if operation.path.endswith("/live"):
                case.query = {**(case.query or {}), "seconds": 0}
            try:
                response = self.loop.run_until_complete(self.send(case, caller))
            except httpx.InvalidURL:  # longer than any request that httpx sends
                hypothesis.reject()
            self.answers[response.status_code] += 1
            excluded = [not_a_server_error] if response.status_code in DOCUMENTED_FAILURES else []
            case.validate_response(response, checks=CHECKS, excluded_checks=excluded)

        conforms()

    async def send(self, case: Any, caller: str) -> httpx.Response:
        """One request, signed, or with a token or a session where its caller has that."""
        made = case.as_transport_kwargs(base_url="http://server")
        if isinstance(made.get("data"), bytes | str):
            made["content"] = made.pop("data")
        headers = {str(name): str(value) for name, value in (made.pop("headers") or {}).items()}
        request = self.site.http.build_request(
            made.pop("method"), made.pop("url"), **{key: value for key, value in made.items() if key in _KNOWN}
        )
        body = await request.aread()
        for name, value in headers.items():
            if name.lower() not in ("content-length", "host"):
                request.headers[name] = value.encode("utf-8", "surrogatepass").decode("latin-1")
        if caller == "operator":
            request.headers["Authorization"] = f"Bearer {self.site.operator_kit.token}"
        elif caller in self.cookies:
            request.headers["Cookie"] = f"{self.site.cookie}={self.cookies[caller]}"
            request.headers["X-Fedcore"] = "1"
        elif caller == "client":
            member: Member = self.site.members[1]
            target = request.url.raw_path.decode("ascii")
            digest = hashlib.sha256(body).digest()
            request.headers.update(member.signed(request.method, target, digest=digest))
        return await self.site.http.send(request)


def caller_of(operation: Any) -> str:
    """Who may call it, by its tag."""
    (tag,) = operation.tags
    return str(tag) if tag in CALLERS else "nobody"


_KNOWN = ("params", "json", "data", "content", "files")


@contextmanager
def prober(federation: FederationFolder, folder: Path) -> Iterator[Prober]:
    """A server in this process whose run has one open exchange."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        stack = AsyncExitStack()
        here = runner.run(stack.enter_async_context(site(federation, folder)))
        made = runner.run(_opened(here, loop))
        try:
            yield made
        finally:
            runner.run(stack.aclose())


async def _opened(here: Site, loop: asyncio.AbstractEventLoop) -> Prober:
    run, app = await here.begin()
    model = ModelState.from_arrays({"weight": np.ones(3, np.float32)})
    app.asking = asyncio.create_task(app.exchange(model, [1, 2, 3, 4]))  # type: ignore[attr-defined]
    await here.enter_all()
    cookies = {"signed in": await here.sign_in(), "viewer": await here.sign_in(await here.link())}
    return Prober(site=here, loop=loop, run=run, cookies=cookies)
