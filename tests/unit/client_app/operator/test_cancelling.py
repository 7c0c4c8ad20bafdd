"""Ctrl-C on `fedcore run`: what its person reads of the run."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from client_app.operator.client import OperatorClient
from client_app.operator.run_follower import Screen
from client_app.operator.run_submission import cancel
from fedcore.federation import OperatorKit

RUN = "0123456789abcdef"


@pytest.mark.parametrize("connects", [True, False])
def test_a_run_that_could_not_be_cancelled_is_not_called_so(connects: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if connects:
            return httpx.Response(502)
        raise httpx.ConnectError("nobody is there")

    kit = OperatorKit(
        folder=Path(),
        federation="study",
        servers=("https://server:8443",),
        ca_file=None,
        authority=bytes(32),
        token="a token",
    )
    with OperatorClient(kit, transport=httpx.MockTransport(answer), connect_seconds=0.0) as client:
        cancel(client, RUN, Screen(as_json=True))
    assert f"fedcore runs stop {RUN}" in capsys.readouterr().err
