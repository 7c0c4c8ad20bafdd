"""A simulated run as a report of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.raising import raises
from support.tiny import TINY

import fedcore
from fedcore.comparison.report import merge, read_reports, write_report
from fedcore.comparison.report.files import drawings_of
from fedcore.comparison.simulated import check_report_folder, comparison_of
from fedcore.errors import ConfigurationError
from fedcore.monitoring.run_record import RunRecord
from fedcore.wire.events import ExchangeDone, RunEnded, RunStarted
from fedcore.wire.operator import RunStatus


def done(number: int, kind: str, survivors: list[str], *, virtual: float | None, acc: float = 0.0) -> ExchangeDone:
    return ExchangeDone(
        exchange=number,
        server_round=(number + 1) // 2,
        message_type=kind,
        aggregation="secure",
        survivors=survivors,
        examples=10,
        metrics={"eval_acc": acc} if kind == "evaluate" else {},
        seconds=2.0,
        virtual_seconds=virtual,
        bytes_up=dict.fromkeys(survivors, 8),
        bytes_down=dict.fromkeys(survivors, 4),
    )


def recorded(*, virtual: bool = True, ends: float = 0.0) -> RunRecord:
    record = RunRecord()
    record.add(RunStarted(app="app", aggregation="secure"), 0.0)
    for number in (1, 2):
        clock = (30.0 * number, 0.0) if virtual else (None, None)
        record.add(done(2 * number - 1, "train", ["client-1", f"client-{number + 1}"], virtual=clock[0]), ends)
        record.add(done(2 * number, "evaluate", ["client-1"], virtual=clock[1], acc=0.4 * number), ends)
    record.add(RunEnded(status=RunStatus.FINISHED), ends)
    return record


def compared(record: RunRecord, **more: Any) -> Any:
    told = {"app": "app", "clients": 2000, "run_config": {"seed": 7}, "settings": {}, "changed": (), "seed": 3}
    return comparison_of(record, {}, **{**told, **more})


def test_the_axes_are_the_clocks_of_the_exchanges_and_not_when_events_were_heard() -> None:
    (run,) = compared(recorded(ends=0.01)).runs
    assert [(one.round, one.seconds, one.simulated_seconds) for one in run.curve] == [(1, 2.0, 30.0), (2, 4.0, 90.0)]
    assert [one.metrics["eval_acc"] for one in run.curve] == [0.4, 0.8]
    assert (run.mode, run.seed, run.seconds, run.simulated_seconds) == ("federated", 7, 4.0, 90.0)
    assert run.bytes_up == {"client-1": 16, "client-2": 8, "client-3": 8}
    assert (run.samples, run.reported_examples) == (None, 20)
    (weighted,) = compared(recorded(), settings={"weight-key": "importance"}).runs
    assert weighted.reported_examples is None
    assert run.curve[-1].bytes_up == pytest.approx(32 / 3), "the curve ends where the table does"


def test_without_a_virtual_clock_there_is_no_such_axis() -> None:
    def axes(*, virtual: bool) -> set[str]:
        return {drawing.name.removeprefix("eval-acc-") for drawing in drawings_of(compared(recorded(virtual=virtual)))}

    assert axes(virtual=True) - axes(virtual=False) == {"simulated-seconds"}
    assert {"rounds", "seconds", "bytes"} <= axes(virtual=False)
    assert "samples" not in axes(virtual=False), "nobody counted them with their repetitions"


def test_of_one_run_nothing_is_said_to_have_been_equal(tmp_path: Path) -> None:
    write_report(compared(recorded()), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "were equal in all modes" not in page
    assert "Not everything was equal" not in page
    assert "80.00" in page


def test_reports_of_runs_are_merged_like_those_of_comparisons(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        write_report(compared(recorded()), tmp_path / name)
    merged = merge(read_reports([tmp_path / name / "report.json" for name in ("one", "other")]))
    assert merged.labels == ("federated (one)", "federated (other)")


def test_nothing_but_a_report_is_replaced(tmp_path: Path) -> None:
    check_report_folder(tmp_path / "new", force=False)
    (tmp_path / "report.json").touch()
    with raises(ConfigurationError, check="not-empty", match="--report"):
        check_report_folder(tmp_path, force=False)
    check_report_folder(tmp_path, force=True)
    (tmp_path / "report.json").rename(tmp_path / "thesis.tex")
    with raises(ConfigurationError, check="not-empty"):
        check_report_folder(tmp_path, force=True)
    with raises(ConfigurationError, check="not-a-folder"):
        check_report_folder(tmp_path / "thesis.tex", force=True)


def test_a_run_of_the_api_reports_itself(tmp_path: Path) -> None:
    run = fedcore.simulate(TINY, clients=3, progress=False, devices="time=lognormal:0.5")
    folder = run.report(tmp_path / "report")
    (kept,) = read_reports([folder / "report.json"])["report"].runs
    ends = run.record.virtual_ends()
    assert ends is not None
    assert kept.simulated_seconds == pytest.approx(ends[-1])
    assert kept.seconds == pytest.approx(sum(one.seconds for one in run.record.exchanges if one.trains))
