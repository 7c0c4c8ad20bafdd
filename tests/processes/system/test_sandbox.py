"""User code that tries to get at secrets, other processes and the network, in both of its places: it gets nothing.

What training needs still works: files, workers, ranks that find each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import py_compile
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from support.prying_app import write_app
from support.rank_app import said
from support.scripted import federation, kit, kits, log, make_task

from client_app.output import Output
from client_app.ranks.group import GroupSettings
from client_app.ranks.supervisor import LocalGroup
from fedcore.federation import FederationFolder
from fedcore.flower.app import AppBundle
from fedcore.system.sandbox import landlock
from fedcore.system.sandbox.namespaces import Need, kind_of
from fedcore.wire.tasks import Task
from server_app.runs.app.messages import AppEnd, Start
from server_app.runs.app.process import AppProcess

__all__ = ["federation", "kit", "kits", "log", "make_task"]

pytestmark = [
    pytest.mark.skipif(
        landlock.abi() < 6 or kind_of(Need(alone=True)) != "all",
        reason="the machine does not restrict all that is tried",
    ),
]


@pytest.fixture
def config(
    kit: Path, federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """The app's run config: where the secrets lie, and sockets and memory of somebody else.

    Afterwards the secrets, and the folders that they lie in, have to be as they were.
    """
    monkeypatch.setenv("FEDCORE_TEST_SECRET", "a password")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "diary").write_text("mine")
    path, mark = tmp_path / "s", f"fedcore-test-{os.getpid()}"
    shared = Path("/dev/shm") / mark
    shared.write_text("somebody's")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        listening(str(path)),
        listening(f"\0{mark}"),
    ):
        keys = (federation.server / "server.key", federation.folder / "authority" / "authority.key")
        secrets = (kit / "identity.key", tmp_path / "home" / "diary", *keys)
        before = states(secrets)
        yield {
            "secrets": os.pathsep.join(map(str, secrets)),
            "port": listener.getsockname()[1],
            "network": False,
            "socket": str(path),
            "mark": mark,
            "agent": os.getpid(),
        }
    assert states(secrets) == before
    assert shared.read_text() == "somebody's"
    shared.unlink()


@contextlib.contextmanager
def listening(address: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        yield


def states(paths: Iterable[Path]) -> list[tuple[int, ...]]:
    """Modes, owners, times and contents' sizes of files, and of the folders that they lie in."""
    found = [place.stat() for path in paths for place in (path, path.parent)]
    return [(state.st_mode, state.st_uid, state.st_gid, state.st_mtime_ns, state.st_size) for state in found]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The copy of the app that is run; in its owner's folder there is other bytecode, and later another source."""
    folder = write_app(tmp_path / "app")
    (tmp_path / "other.py").write_text('raise SystemExit("this is not what was agreed")')
    planted = folder / "__pycache__" / f"prying.{sys.implementation.cache_tag}.pyc"
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(tmp_path / "other.py"), str(planted), invalidation_mode=unchecked)
    copy = AppBundle.from_folder(folder).install(tmp_path / "apps")
    (tmp_path / "other.py").replace(folder / "prying.py")
    return copy


@pytest.fixture
def settings(app: Path, tmp_path: Path) -> GroupSettings:
    (tmp_path / "data").mkdir()
    return GroupSettings(app=app, app_sha256=app.name, client_id=1, node_config={}, data_dir=tmp_path / "data")


@pytest.mark.parametrize("ranks", [1, 2])
async def test_a_client_app_gets_nothing(
    settings: GroupSettings,
    config: dict[str, Any],
    make_task: Callable[..., Task],
    tmp_path: Path,
    log: StringIO,
    ranks: int,
) -> None:
    """Ranks that find each other have the network, and nothing else beside one."""
    task = make_task(run_config={**config, "network": ranks > 1}, seconds=300.0)
    model = (tmp_path / "global.safetensors").rename(tmp_path / "data" / "global.safetensors")
    group = LocalGroup(replace(settings, ranks=ranks), Output(name="client-1", stream=log))
    try:
        await group.run(task, model, tmp_path / "out.safetensors")
        await said(log, "tried all")
    finally:
        await group.stop()
    assert [line for line in log.getvalue().splitlines() if "got " in line or "lost " in line] == []
    assert (tmp_path / "out.safetensors").is_file()


async def test_a_server_app_gets_nothing(app: Path, config: dict[str, Any], tmp_path: Path) -> None:
    run, lines = tmp_path / "run", []
    (run / "work").mkdir(parents=True)
    AppBundle.from_copy(app).write(run / "app")
    process = await AppProcess.start(run / "work", lines.append)
    try:
        start = Start(
            app=str(run / "app"),
            folder=str(run / "work"),
            run="r",
            run_config=config,
            aggregation="secure",
        )
        await process.send(start)
        assert await asyncio.wait_for(process.receive(), 200) == AppEnd(model=None)
    finally:
        await process.stop()
    assert "tried all" in lines
    assert [line for line in lines if line.startswith(("got ", "lost "))] == []
