"""A client that would not understand what it is asked hears so at once, and is not counted."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from support.members import Failure
from support.serverside import Site, events_of, site

from fedcore.federation import FederationFolder
from fedcore.wire.forms import our_version
from fedcore.wire.presence import HeartbeatIn, JoinIn
from server_app.routes.client import LOST_RECORDS
from server_app.runs.app.messages import ExchangeRefused
from tests.support.raising import raises

APP = "cd" * 32
HEAD = "ef" * 32


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


async def test_a_later_version_that_says_more_hears_both_names(here: Site) -> None:
    """In place of "malformed", which would not tell it what to do."""
    hello = JoinIn(app_sha256=APP, version="0.9.0 (forms 99.2.5.3.3)").model_dump(mode="json")
    body = json.dumps({**hello, "of_tomorrow": {"more": 1}}).encode()
    with pytest.raises(Failure) as refused:
        await here.members[2].ask("POST", "/v1/join", body)
    assert (refused.value.status, refused.value.kind) == (426, "other-version")
    assert our_version() in refused.value.problem.detail


async def test_a_client_that_joined_before_the_server_was_upgraded_has_to_join_again(here: Site) -> None:
    """It has not noticed that another server answers: until it joins, it is not there, and its poll is refused."""
    member, presence = here.members[2], here.services.presence
    presence.outdated[2] = "0.3.0 (forms 99.2.5.3.3)"
    await member.ask("POST", "/v1/heartbeat", HeartbeatIn())
    assert 2 not in presence.online(60.0)
    for _ in range(2):
        with raises(Failure, kind="other-version") as refused:
            await member.ask("GET", "/v1/task?wait=30")
        assert presence.outdated[2] in refused.value.problem.detail
    await member.join(APP)
    assert presence.online(60.0) == {2}


async def test_a_server_that_starts_knows_who_joined_with_other_forms(
    federation: FederationFolder, tmp_path: Path
) -> None:
    versions = {1: "0.1.0", 2: our_version(), 3: "0.3.0 (forms 99.2.5.3.3)"}
    async with site(federation, tmp_path) as before:
        for client, version in versions.items():
            await before.services.store.remember_client(client, APP, version)
    async with site(federation, tmp_path) as here:
        assert here.services.presence.outdated == {1: versions[1], 3: versions[3]}
        assert here.services.presence.installed == dict.fromkeys(versions, APP)


@pytest.mark.parametrize("known", [{"head": HEAD}, {"signed": {HEAD: APP}}])
async def test_a_client_that_knows_more_sums_than_the_server_counts_as_absent(
    here: Site, caplog: pytest.LogCaptureFixture, known: dict[str, Any]
) -> None:
    """An older state of the server was put back: both say so, and the run waits as for any absent client."""
    run, app = await here.begin()
    app_sha256 = (await here.show(run)).app_sha256
    for _ in range(2):
        for member in here.members.values():
            with pytest.raises(Failure) as refused:
                await member.ask("POST", "/v1/join", JoinIn(app_sha256=app_sha256, version=our_version(), **known))
            assert (refused.value.status, refused.value.kind) == (409, "other-transcript")
    assert not here.services.presence.online(60.0)
    assert here.services.presence.refusals.keys() == here.members.keys()
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == len(here.members), "once each, however often it asks"
    answer = await here.clock.run_until(asyncio.create_task(app.nodes()))
    assert isinstance(answer, ExchangeRefused)
    assert LOST_RECORDS in answer.reason
    drops = events_of(await here.show(run), "dropped")
    assert {drop["client"] for drop in drops if LOST_RECORDS in drop["reason"]} == set(here.services.names.values())
    await here.members[2].join(app_sha256)
    assert here.services.presence.online(60.0) == {2}, "the newest backup is back"
    assert 2 not in here.services.presence.refusals
