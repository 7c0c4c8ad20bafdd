"""Federations that released commits wrote: opened, upgraded, and run on with clients of today."""

from __future__ import annotations

import shutil
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.commands import forked
from support.deployment import ENVIRONMENT, PATIENCE, assert_none_left, wait_until
from support.forked import MARK, ForkedGroup
from support.ports import reserved_port

from fedcore.comparison.local_federation import FEDCORE
from fedcore.state import ModelState

HERE = Path(__file__).parent
CLIENTS = ("client-1", "client-2", "client-3")
PORT = "18558"
"""That the kept ones were made with."""


@pytest.fixture(params=sorted(path.name for path in HERE.glob("*.tar.gz")))
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, ForkedGroup]]:
    """A kept federation, at a port of its own, and what starts its processes."""
    with tarfile.open(HERE / request.param) as tar:
        tar.extractall(tmp_path, filter="data")
    shutil.copytree(HERE / "app", tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    mark = uuid.uuid4().hex
    with reserved_port() as port, ForkedGroup(tmp_path / "logs", {**ENVIRONMENT, MARK: mark}) as group:
        for settings in [*tmp_path.glob("fed/*/*.toml"), *tmp_path.glob("fed/clients/*/client.toml")]:
            settings.write_text(settings.read_text().replace(PORT, str(port)))
        yield tmp_path, group
    assert_none_left(mark)


def typed(folder: Path, *words: str | Path) -> str:
    done = forked(*words, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_upgraded_federation_goes_on(kept: tuple[Path, ForkedGroup]) -> None:
    """Its open run is led to its end, by the round that was under way asked for again; the next one is as any other."""
    folder, group = kept
    for client in CLIENTS:  # signatures of the version that wrote them, over what that version made of the encoding
        typed(folder, "transcript", "verify", "--kit", f"fed/clients/{client}")
    typed(folder, "federation", "renew", "--federation", "fed")
    typed(folder, "server", "upgrade", "--federation", "fed")
    group.start("server", [*FEDCORE, "server", "--federation", str(folder / "fed")])
    for client in CLIENTS:
        kit = folder / "fed" / "clients" / client
        group.start(client, [*FEDCORE, "client", "--kit", str(kit), "--app", str(folder / "app")])

    def ended() -> bool:
        group.check()
        return " finished" in (group.logs / "server.log").read_text()

    wait_until("the open run to finish", ended)
    patient = ("--connect-seconds", str(PATIENCE))
    typed(folder, "run", "app", "--operator", "fed/operator", *patient, "--out", "after.safetensors")
    (trained,) = ModelState.open(folder / "after.safetensors").items()
    np.testing.assert_allclose(trained[1], np.full(4, 2.0), atol=1e-3)
    for client in CLIENTS:
        told = typed(folder, "transcript", "show", "--kit", f"fed/clients/{client}")
        assert told.count(" 3 of 3 ") == 6, "both runs of before and the one after, two rounds each"
