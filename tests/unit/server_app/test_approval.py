"""Submitting a run is the operator's right, approving its code that of the server's owner."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.members import Failure
from support.serverside import site
from support.services import federation
from support.tiny import TINY
from typer.testing import CliRunner

from fedcore.cli.main import app as cli
from fedcore.errors import KitError
from fedcore.federation import FederationFolder, ServerKit, create
from fedcore.federation.approval import ApprovedApps
from fedcore.flower.app import AppBundle
from fedcore.wire.operator import RunStatus
from tests.support.raising import raises

__all__ = ["federation"]

SHA256 = AppBundle.from_folder(TINY).sha256


async def test_only_an_approved_app_can_be_submitted(federation: FederationFolder, tmp_path: Path) -> None:
    approved = ApprovedApps(tmp_path / "approved_apps")
    async with site(federation, tmp_path, approved_apps=approved) as made:
        approved.approve("ab" * 32, "another")
        with pytest.raises(Failure, match="--federation") as refused:
            await made.submit()
        assert refused.value.problem.kind == "app-not-approved"
        assert SHA256 in refused.value.problem.detail
        assert not made.services.settings.runs_dir.exists()
        approved.approve(SHA256, "tiny")
        assert not (await made.submit()).status.final


async def test_a_run_that_waited_still_needs_the_approval(federation: FederationFolder, tmp_path: Path) -> None:
    approved = ApprovedApps(tmp_path / "approved_apps")
    approved.approve(SHA256, "tiny")
    async with site(federation, tmp_path, approved_apps=approved) as made:
        first, app = await made.begin()
        second = await made.submit()
        approved.remove(SHA256)
        await made.finish(first, app)
        ended = await made.follow(second.run)
    assert ended.status is RunStatus.FAILED
    assert SHA256 in ended.reason


async def test_an_app_that_was_changed_on_the_server_does_not_run(federation: FederationFolder, tmp_path: Path) -> None:
    async with site(federation, tmp_path) as made:
        first, app = await made.begin()
        second = await made.submit()
        kept = made.services.settings.runs_dir / second.run / "app"
        kept.write_text(json.dumps({**json.loads(kept.read_text()), "tiny_app/sneaked.py": ""}))
        await made.finish(first, app)
        ended = await made.follow(second.run)
    assert ended.status is RunStatus.FAILED
    assert "copy of the app was changed" in ended.reason


def test_the_owner_of_the_servers_folder_approves(tmp_path: Path) -> None:
    """With the command; the stock federation of `fedcore federation create` lists nothing yet."""
    folder = create(tmp_path / "fed", name="pilot", now=datetime.now(UTC)).folder
    assert ServerKit.load(folder).approved_apps is not None

    def approve(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["server", "approve", *words, "--federation", str(folder)])
        return done.exit_code, done.stdout + done.stderr

    assert approve("--list") == (0, "")
    status, said = approve(str(TINY))
    assert (status, "tiny" in said, SHA256 in said) == (0, True, True)
    assert approve("--list") == (0, f"{SHA256}  tiny\n")
    assert approve("--remove", SHA256)[0] == 0
    status, said = approve("--remove", str(TINY))
    assert (status, SHA256 in said) == (2, True)
    assert approve(SHA256)[0] == 2, "whoever approves has the code"
    (folder / "server" / "approved_apps").write_text("tiny\n")
    with raises(KitError, match="approved_apps", numbers=(1,)):
        ApprovedApps(folder / "server" / "approved_apps").load()


def test_a_federation_for_trying_things_out_runs_every_app(federation: FederationFolder) -> None:
    assert ServerKit.load(federation.server).approved_apps is None
