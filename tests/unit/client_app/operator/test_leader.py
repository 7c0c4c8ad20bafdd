"""Which server is asked next, where a federation has several."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from client_app.http.errors import next_server
from client_app.operator.client import OperatorClient
from fedcore.errors import Refused
from fedcore.federation import OperatorKit
from fedcore.wire.problems import ProblemDocument, ProblemKind

URLS = tuple(f"https://server-{number}:8443" for number in range(3))


@pytest.mark.parametrize(
    ("at", "error", "then"),
    [
        (0, Refused(503, "not-leading", "", leader=URLS[2]), 2),
        (0, Refused(503, "not-leading", "", leader="https://elsewhere:8443"), 1),
        (2, Refused(503, "not-leading", "", leader=URLS[2]), 0),
        (2, Refused(503, "not-leading", ""), 0),
        (1, httpx.ConnectError("nobody is there"), 2),
    ],
)
def test_the_leader_follows_if_it_is_one_of_the_kit(at: int, error: Exception, then: int) -> None:
    assert next_server(URLS, at, error) == then


def test_a_command_asks_the_server_that_a_standby_names() -> None:
    hosts: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        if request.url.host == "server-2":
            return httpx.Response(200, json={"runs": [], "more": False})
        kind = f"urn:fedcore:problem:{ProblemKind.NOT_LEADING}"
        problem = ProblemDocument.model_validate(
            {"type": kind, "title": "stands by", "status": 503, "detail": "another leads", "leader": URLS[2]}
        )
        return httpx.Response(503, json=problem.model_dump(mode="json"))

    kit = OperatorKit(
        folder=Path(), federation="study", servers=URLS, ca_file=None, authority=bytes(32), token="a token"
    )
    with OperatorClient(kit, transport=httpx.MockTransport(answer)) as client:
        assert not client.list_runs(limit=1).runs
    assert hosts == ["server-0", "server-2"]
