"""The tables of published results: rounds to a target, what is kept, and how it is judged."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.published import main
from benchmarks.published_cells import MCMAHAN, TABLES, Cell
from benchmarks.published_report import report
from benchmarks.published_runs import Outcome, Runner, Shelf, rounds_to
from fedcore.flower.app import FlowerApp
from fedcore.system.assignments import override
from fedcore.wire.events import FiguresFound, RunEvent, RunResumed


def test_rounds_are_counted_on_the_best_curve_so_far_between_rounds_by_a_straight_line() -> None:
    assert rounds_to([10, 50, 90, 98], 97) == pytest.approx(2 + 7 / 8)
    # The dip of round 3 is no part of the best so far: from 90 to 98, not from 40.
    assert rounds_to([10, 50, 90, 40, 98], 97) == pytest.approx(3 + 7 / 8)
    assert rounds_to([10, 50, 97], 97) == 2.0
    assert rounds_to([97.5], 97) == 0.0
    assert rounds_to([10, 50, 96.9], 97) is None
    assert rounds_to([], 97) is None


def cell(**changes: object) -> Cell:
    return replace(MCMAHAN[0], **changes)  # type: ignore[arg-type]


def made(tmp_path: Path, one: Cell, *curves: list[float], rates: tuple[float, ...] = (0.1,)) -> dict[str, str]:
    """The first row of the report over runs with these curves, one for each rate."""
    shelf = Shelf(tmp_path)
    runs = [one.runs(rates=(rate,))[0] for rate in rates]
    for run, curve in zip(runs, curves, strict=True):
        shelf.keep(run, Outcome(curve=curve, losses=[], ended="target", date="2026-01-01"))
    found = report("mcmahan", [one], runs, shelf, {})
    return dict(zip(found.tables[0].header, found.tables[0].rows[0], strict=True))


@pytest.mark.parametrize(
    ("rounds", "verdict"), [(40, "better"), (44, "yes"), (87, "yes"), (130, "yes"), (131, "**no**")]
)
def test_half_as_many_rounds_to_half_as_many_again_is_agreement(tmp_path: Path, rounds: int, verdict: str) -> None:
    row = made(tmp_path, cell(), [10.0] * rounds + [97.0])
    assert row["within 50 %"] == verdict
    assert row["here"] == f"{rounds:.1f}"
    assert row["ratio"] == f"{rounds / 87:.2f}"


def test_a_target_that_was_not_reached_is_told_from_a_run_that_was_cut(tmp_path: Path) -> None:
    assert made(tmp_path, cell(rounds=5), [10.0] * 6)["within 50 %"] == "**no**, not reached"
    assert made(tmp_path, cell(rounds=6), [10.0] * 6)["within 50 %"] == "open, cut"


def test_a_run_that_an_error_ended_is_told_from_one_that_was_cut(tmp_path: Path) -> None:
    one, shelf = cell(rounds=6), Shelf(tmp_path)
    (run,) = one.runs()
    shelf.keep(run, Outcome(curve=[10.0, 9.0], losses=[], failure="no sum has room for that"))
    notes = report("mcmahan", [one], [run], shelf, {run.key: "no sum has room for that"}).notes
    assert [note for note in notes if "no sum has room" in note] == [
        f"ended by an error after round 1: {run.name}, secure: no sum has room for that"
    ]
    assert not any("cut for time" in note for note in notes)
    (early,) = one.runs(seeds=(43,))
    assert "failed: bad input" in report("mcmahan", [one], [run], shelf, {early.key: "bad input"}).notes


def test_the_best_of_the_learning_rates_counts_and_all_are_named(tmp_path: Path) -> None:
    row = made(tmp_path, cell(), [10.0, 97.0], [10.0, 96.0, 96.5], [10.0, 10.0, 97.0], rates=(0.1, 0.05, 0.215))
    assert row["here"] == "1.0"
    assert row["lr (tried)"] == "0.1 (0.05, 0.1, 0.215)"


def test_accuracies_are_judged_by_their_errors(tmp_path: Path) -> None:
    one = cell(target=None, published=(99.0,))
    assert made(tmp_path, one, [10.0, 98.6, 98.5])["ratio"] == "1.40"
    assert made(tmp_path, one, [10.0, 98.4])["within 50 %"] == "open, cut"
    assert made(tmp_path, replace(one, rounds=1), [10.0, 98.4])["within 50 %"] == "**no**"


def figures_of(number: int, accuracy: float) -> FiguresFound:
    return FiguresFound(server_round=number, source="server", metrics={"eval_acc": accuracy, "eval_loss": 1.0})


def heard(runner: Runner, found: FiguresFound) -> bool:
    """Tell a runner as a simulation does; whether the run ends there."""
    runner.hear(found)
    return runner.test(found)


def test_what_is_kept_is_found_again_and_a_shorter_run_does_not_replace_it(tmp_path: Path) -> None:
    shelf, run = Shelf(tmp_path), MCMAHAN[0].runs()[0]
    assert shelf.outcome(run) is None
    shelf.keep(run, Outcome(curve=[1.0, 2.0, 3.0], losses=[0.1] * 3, ended="time"))
    kept = shelf.outcome(replace(run, rounds=500))
    assert kept is not None
    assert kept.curve == [1.0, 2.0, 3.0]
    assert not kept.answers(run)
    assert kept.answers(replace(run, rounds=2))
    assert kept.answers(replace(run, target=3.0))
    assert shelf.outcome(replace(run, seed=43)) is None
    runner = Runner(run, shelf, deadline=time.time() + 100)
    heard(runner, figures_of(0, 0.5))
    runner.save()
    assert shelf.outcome(run) == kept


def test_a_run_ends_at_its_target_or_when_its_time_is_over(tmp_path: Path) -> None:
    run = MCMAHAN[0].runs()[0]
    runner = Runner(run, Shelf(tmp_path), deadline=time.time() + 100)
    assert not heard(runner, figures_of(0, 0.5))
    assert heard(runner, figures_of(1, 0.98))
    assert runner.outcome.ended == "target"
    runner = Runner(run, Shelf(tmp_path / "other"), deadline=0.0)
    assert heard(runner, figures_of(0, 0.5))
    assert runner.outcome.ended == "time"


@pytest.mark.parametrize("table", sorted(TABLES))
def test_every_run_sets_what_its_app_has_and_none_is_another(table: str) -> None:
    runs = [run for one in TABLES[table].cells for run in one.runs()]
    assert len({run.key for run in runs}) == len(runs)
    for run in runs:
        app = FlowerApp.load(run.folder)
        override(app.run_config, {**run.config, "seed": run.seed, "num-server-rounds": run.rounds}, run.name)


def test_secure_is_set_beside_plain_of_the_same_seed(tmp_path: Path) -> None:
    shelf, one = Shelf(tmp_path), TABLES["widths"].cells[0]
    curves = [[10.0, 50.0, 60.0], [10.0, 50.5, 60.25], [10.0, 50.0, 60.0], [10.0, 50.0, 60.0]]
    for run, curve in zip(one.runs(), curves, strict=True):
        shelf.keep(run, Outcome(curve=curve, losses=[]))
    found = report("widths", [one], one.runs(), shelf, {})
    assert found.tables[0].rows[0][1:6] == ("secure, 16 bits", "2", "60.00", "+0.250", "0.500")
    assert [figure.value for figure in found.figures] == [0.25, 0.0, 0.0]


def test_the_smallest_cell_of_the_harness(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["mcmahan", "--quick", "--data-dir", str(data_dir), "--folder", str(tmp_path), "--json", "--jobs", "1"]
    monkeypatch.setenv("FEDCORE_DATA", "/nowhere")
    monkeypatch.setattr("sys.argv", ["published.py", *words])
    assert main() == 0
    found = json.loads(capsys.readouterr().out)
    row = found["tables"][0]["rows"][0]
    assert row["rounds run"] == "2"
    assert float(row["best %"]) > 70
    # What is kept is not run again.
    shelf, run = Shelf(tmp_path), next(iter(MCMAHAN[0].runs(rounds=2)))
    before = shelf.outcome(run)
    assert main() == 0
    assert "1 are kept from before" in capsys.readouterr().err
    assert shelf.outcome(run) == before


class CutAfterOneRound(Runner):
    """Its time is over with the first round."""

    def hear(self, event: RunEvent) -> None:
        super().hear(event)
        if isinstance(event, FiguresFound) and event.server_round == 1:
            self.deadline = 0.0


class Resumed(Runner):
    """Notes how many requests had their answer."""

    resumed: int

    def hear(self, event: RunEvent) -> None:
        super().hear(event)
        if isinstance(event, RunResumed):
            self.resumed = event.steps


def test_a_run_that_was_cut_goes_on_to_the_same_curve(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDCORE_DATA", str(data_dir))
    (run,) = MCMAHAN[0].runs(rounds=3)
    later, states, shelf = time.time() + 1e6, tmp_path / "states", Shelf(tmp_path / "cut")
    whole = Runner(run, Shelf(tmp_path / "whole"), later).carry_out()
    cut = CutAfterOneRound(run, shelf, later, states=states).carry_out()
    assert (cut.ended, cut.curve) == ("time", whole.curve[:2])
    assert len(list(states.iterdir())) == 1
    goes_on = Resumed(run, shelf, later, states=states)
    rest = goes_on.carry_out()
    assert goes_on.resumed > 0
    assert rest.ended == "rounds"
    assert rest.curve[:2] == cut.curve
    assert rest.curve == pytest.approx(whole.curve, abs=0.1)  # other keys, so that sums are rounded differently
    assert rest.seconds > cut.seconds
    assert not list(states.iterdir()), "of no use any more"
