"""`fedcore client export`: the client's own model comes out whole, and its absence is explained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from typer.testing import CliRunner

from fedcore.cli.main import app
from fedcore.federation import FederationFolder
from fedcore.state import ModelState, OwnModelFolder, OwnModelRecord

STATE = ModelState.from_arrays({"body": np.arange(6, dtype=np.float32), "head": np.array([0.5, -1.0], np.float32)})
RECORD = OwnModelRecord(
    run="run-7", server_round=5, app_sha256="ab" * 32, personal=("head",), metrics={"accuracy": 0.875}
)


@pytest.fixture
def kit(federation: FederationFolder, tmp_path: Path) -> Path:
    """A copy of client 1's kit, without the state of an agent."""
    return Path(shutil.copytree(federation.clients[0], tmp_path / "kit"))


def export(kit: Path, out: Path, *more: str | Path) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    words = ["client", "export", "--kit", kit, "--out", out, *more]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.stdout, done.stderr


def test_the_model_and_what_it_is(kit: Path, tmp_path: Path) -> None:
    OwnModelFolder(kit / "state" / "local").save(STATE, RECORD)
    out = tmp_path / "model.safetensors"
    status, said, _ = export(kit, out)
    assert (status, said.strip()) == (
        0,
        f"saved {out}: the client's personal model after round 5 of run run-7, 1 of 2 tensors personal, "
        "accuracy 0.8750",
    )
    exported = ModelState.open(out)
    assert {name: array.tolist() for name, array in exported.items()} == {n: a.tolist() for n, a in STATE.items()}
    status, said, _ = export(kit, out, "--json")
    assert status == 0
    told = json.loads(said)
    metadata = told.pop("metadata")
    assert (metadata["fedcore.kind"], metadata["fedcore.run"], metadata["fedcore.rounds"]) == ("own", "run-7", "5")
    with safe_open(out, framework="numpy") as file:
        assert file.metadata() == metadata
    assert told == {
        "model": str(out),
        "run": "run-7",
        "server_round": 5,
        "app_sha256": "ab" * 32,
        "personal": ["head"],
        "metrics": {"accuracy": 0.875},
        "tensors": 2,
        "bytes": 32,
    }


def test_another_state_folder(kit: Path, tmp_path: Path) -> None:
    OwnModelFolder(tmp_path / "elsewhere" / "local").save(STATE, RECORD)
    assert export(kit, tmp_path / "out")[0] == 2
    assert export(kit, tmp_path / "out", "--state-dir", tmp_path / "elsewhere")[0] == 0


def test_why_there_is_none(kit: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    status, _, said = export(kit, out)
    assert status == 2
    assert "has not taken part in a round yet" in said
    (kit / "state").mkdir()
    (kit / "state" / "ledger.jsonl").write_text('{"event": "entered", "run": "run-7", "exchange": 1}\n')
    status, _, said = export(kit, out)
    assert status == 2
    assert "the app keeps none, or its first round has not ended" in said
    assert not out.exists()


def test_a_place_that_cannot_be_written(kit: Path, tmp_path: Path) -> None:
    OwnModelFolder(kit / "state" / "local").save(STATE, RECORD)
    status, _, said = export(kit, tmp_path / "absent" / "out")
    assert status == 4
    assert "--out" in said
    assert "No such file or directory" in said


@pytest.mark.parametrize(
    ("words", "missing"), [((), "--kit"), (("--app", "x"), "--kit"), (("--kit", "x"), "--app"), (("export",), "--kit")]
)
def test_what_is_required_is_still_asked_for(words: tuple[str, ...], missing: str) -> None:
    done = CliRunner().invoke(app, ["client", *words])
    assert done.exit_code == 2
    assert f"Missing option '{missing}'" in done.stderr
