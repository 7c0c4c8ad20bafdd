"""A run whose ServerApp is killed and whose server is stopped ends with the same bits as one that was left alone."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support import members
from support.members import Member
from support.serverside import Site, events_of, site, until

from fedcore import codec
from fedcore.federation import FederationFolder
from server_app.runs.app.process import AppProcess

SETTINGS = {"min-clients": 4}
CONFIG = {"min-nodes": 4, "strategy": "FedAdam", "num-server-rounds": 3}


def same_rounding(*arguments: Any, **named: Any) -> Any:
    """The same update of a client in every run, to the bit."""
    return codec.encode(*arguments, **{**named, "randomness": lambda size: b"\x5a" * size})


async def one_round(here: Site) -> None:
    for _ in range(2):  # train, then evaluate
        everybody = await here.enter_all()
        await asyncio.gather(*(member.plain() if is_plain(member) else member.secure() for member in everybody))


def is_plain(member: Member) -> bool:
    return member.task is not None and member.task.aggregation == "plain"


async def kill_app(here: Site) -> None:
    """kill -9 of the ServerApp's process, and wait for the next one."""
    before = set(apps_of(here))  # it, and those that keep it in its namespaces, which were there first
    os.kill(max(before), signal.SIGKILL)
    await until(lambda: bool(set(apps_of(here)) - before))


def apps_of(here: Site) -> list[int]:
    mark, found = str(here.services.settings.work_dir), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in str(Path(f"/proc/{name}/cwd").readlink()):
                found.append(int(name))
        except OSError:
            continue
    return found


async def finished(here: Site, run: str) -> bytes:
    ended = await here.follow(run)
    assert ended.status == "finished", ended.reason
    assert [item["exchange"] for item in events_of(ended, "exchange-done")] == [1, 2, 3, 4, 5, 6]
    model = (await here.operator("GET", f"/v1/runs/{run}/model")).content
    return model[8 + int.from_bytes(model[:8], "little") :]  # the tensors: the head has the run's id and the time


@pytest.mark.parametrize("kind", [{"aggregation": "secure", "download-bits": 16}, {"aggregation": "plain"}])
async def test_fedadam_ends_with_the_same_bits_whatever_was_killed(
    federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any]
) -> None:
    settings = {**SETTINGS, **kind}
    monkeypatch.setattr(members, "encode", same_rounding)
    async with site(federation, tmp_path / "calm", start_app=AppProcess.start) as here:
        run = (await here.submit(settings, CONFIG)).run
        for _ in range(3):
            await one_round(here)
        undisturbed = await finished(here, run)
    async with site(federation, tmp_path / "killed", start_app=AppProcess.start) as first:
        shown = await first.submit(settings, CONFIG)
        await one_round(first)
        await kill_app(first)
        await one_round(first)
    async with site(federation, tmp_path / "killed", start_app=AppProcess.start) as second:
        await asyncio.gather(*(member.join(shown.app_sha256) for member in second.members.values()))
        await one_round(second)
        assert await finished(second, shown.run) == undisturbed
