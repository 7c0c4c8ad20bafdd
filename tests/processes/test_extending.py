"""The mode of docs/extending.md is compared like any other, from its file and its row alone."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pages import examples

from fedcore import CompareJob, FlowerApp, carry_out, parse_modes
from fedcore.comparison import modes
from fedcore.comparison.carry_out import RunStart
from fedcore.comparison.report import write_report
from fedcore.wire.events import EventSink, ignore

DIGITS = Path(__file__).parents[2] / "examples" / "digits"

# The fork server may need long to import torch.


@contextlib.contextmanager
def unwatched(start: RunStart) -> Iterator[EventSink]:
    yield ignore


def test_a_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, row = examples("A mode of comparison")
    # A file: the workers are other processes, which import it.
    (tmp_path / "first_site.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    names = {"_ROWS": (), "FirstSite": importlib.import_module("first_site").FirstSite}
    exec(row, names)
    mode = names["_ROWS"][-1]
    monkeypatch.setitem(modes.MODES, mode.name, mode)

    app = FlowerApp.load(DIGITS)
    chosen = parse_modes("first-site,local")
    job = CompareJob(
        app=app, modes=chosen, sites=2, out=tmp_path / "out", run_config={"num-server-rounds": 2, "local-epochs": 1}
    )
    comparison = carry_out(job, unwatched)
    ours, local = comparison.runs
    assert (ours.status, local.status) == ("finished", "finished"), (ours.reason, local.reason)
    assert ours.initial_sha256 == local.initial_sha256
    folder = tmp_path / "out" / "runs"
    first, alone = (sorted(folder.glob(f"*-{kind}-*"))[0] for kind in ("first-site", "local"))
    models = [(found / "client-1" / "model.safetensors").read_bytes() for found in (first, alone)]
    assert models[0] == models[1]
    assert "accuracy" in ours.metrics
    report = write_report(comparison, tmp_path / "out")
    assert "the model of the first site, for everybody" in report
