"""A client that would not understand what it is asked hears so at once, and is not counted."""

from __future__ import annotations

import logging

import pytest
from support.members import Failure
from support.serverside import Site

from fedcore.wire.forms import our_version
from fedcore.wire.presence import JoinIn

APP = "cd" * 32


@pytest.mark.parametrize("version", ["0.1.0", "0.3.0 (forms 99.2.5.3.3)"])
async def test_a_client_of_another_version_is_refused_by_both_names(
    here: Site, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    member = here.members[2]
    await member.join(APP)
    assert 2 in here.services.presence.online(60.0)
    hello = JoinIn(app_sha256=APP, version=version)
    for _ in range(2):
        with pytest.raises(Failure) as refused:
            await member.ask("POST", "/v1/join", hello)
        assert (refused.value.response.status_code, refused.value.problem.kind) == (426, "other-version")
        assert our_version() in refused.value.problem.detail
        assert version in refused.value.problem.detail
    assert 2 not in here.services.presence.online(60.0)
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1, "once, however often it asks"
    await member.join(APP)
    assert 2 in here.services.presence.online(60.0), "upgraded, it is as any other"
