"""The models that a client remembers to tell nearly equal ones: after a restart, without its seed, and of before."""

from __future__ import annotations

import os
import stat
from itertools import pairwise
from pathlib import Path

import numpy as np
from support.raising import raises
from support.records import make_task

from client_app.records.ledger import Ledger
from client_app.records.ledger_entries import LEDGER_FILE
from client_app.records.sketch_seed import SEED_FILE, sketcher_of
from fedcore.errors import ConfigurationError
from fedcore.state import ModelState, Sketcher
from fedcore.wire.tasks import ModelRef


def have(ledger: Ledger, sketcher: Sketcher, run: str, *places: float, size: int = 12, kind: str = "train") -> None:
    """The client has models, each at a place on a line, and named by it."""
    for exchange, place in enumerate(places, start=1):
        model = ModelState.from_arrays({"w": np.full(size, float(place))})
        ref = ModelRef(sha256=name(place), size=model.layout.nbytes)
        ledger.add_model(make_task(exchange, run=run, model=ref, message_type=kind), sketcher.sketch(model))


def name(place: float) -> str:
    return f"{round(place * 100):064x}"


def near(ledger: Ledger, place: float) -> frozenset[str]:
    return ledger.models.near("train", name(place), 0.25)


def test_distances_are_known_after_a_restart(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        have(ledger, sketcher_of(tmp_path), "one", 0, 1)
    with Ledger(tmp_path) as ledger:
        have(ledger, sketcher_of(tmp_path), "two", 0, 1.1)
        assert near(ledger, 1.1) == {name(1)}


def test_without_its_seed_the_sketches_of_before_are_of_no_use(tmp_path: Path) -> None:
    """A model that comes again gets a new sketch, and counts from then on."""
    with Ledger(tmp_path) as ledger:
        have(ledger, sketcher_of(tmp_path), "one", 0, 1)
    (tmp_path / SEED_FILE).unlink()
    with Ledger(tmp_path) as ledger:
        have(ledger, sketcher_of(tmp_path), "two", 0, 1.1)
        assert near(ledger, 1.1) == frozenset()
        have(ledger, sketcher_of(tmp_path), "three", 0, 1)
        assert near(ledger, 1.1) == {name(1)}


def test_the_seed_is_the_client_s_own(tmp_path: Path) -> None:
    sketcher_of(tmp_path)
    path = tmp_path / SEED_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sketcher_of(tmp_path).name == sketcher_of(tmp_path).name
    (tmp_path / "other").mkdir()
    assert sketcher_of(tmp_path / "other").name != sketcher_of(tmp_path).name
    path.write_text("no seed")
    with raises(ConfigurationError, check="damaged"):
        sketcher_of(tmp_path)


def test_a_model_has_one_sketch_in_the_ledger(tmp_path: Path) -> None:
    """Evaluated and trained, in this run and the next: 5.7 kB once, and 240 bytes each time."""
    path, sketcher = tmp_path / LEDGER_FILE, sketcher_of(tmp_path)
    with Ledger(tmp_path) as ledger:
        sizes = [0]
        for run, kind in (("one", "train"), ("one", "evaluate"), ("two", "train")):
            have(ledger, sketcher, run, 1, size=5000, kind=kind)
            sizes.append(path.stat().st_size)
    assert sizes[1] < 6000
    assert all(after - before < 250 for before, after in pairwise(sizes[1:]))


def test_a_damaged_sketch_is_named(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        have(ledger, sketcher_of(tmp_path), "one", 1)
    path = tmp_path / LEDGER_FILE
    path.write_bytes(path.read_bytes().replace(b'"sketch":"', b'"sketch":"!'))
    with raises(ConfigurationError, check="damaged"):
        Ledger(tmp_path)


def test_a_ledger_without_models_is_read(tmp_path: Path) -> None:
    """As versions before this one wrote it."""
    with Ledger(tmp_path) as ledger:
        ledger.enter("one", 1)
    with Ledger(tmp_path) as ledger:
        have(ledger, sketcher_of(tmp_path, os.urandom), "two", 0, 1)
        assert near(ledger, 1) == frozenset()
