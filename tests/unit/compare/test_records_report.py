import json
from pathlib import Path
from typing import Any

import pytest
from support.tiny import TINY

from fedcore.compare.job import CompareJob, ModeResult, mode_settings
from fedcore.compare.records_report import COLUMNS, markdown, rows, write_report
from fedcore.config import JobSettings
from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.flower.app import FlowerApp
from fedcore.record import RunRecord


def result(mode: str, aggregation: str, accuracy: float, sent: int) -> ModeResult:
    record = RunRecord()
    record.add("started", {"app": "tiny", "aggregation": aggregation, "rounds": 1}, 0.0)
    base: dict[str, Any] = {"server_round": 1, "survivors": ["a"], "seconds": 1.0, "bytes_up": {"a": sent}}
    train = {**base, "message_type": "train", "examples": 64, "metrics": {"train_loss": 2.0}}
    evaluate = {**base, "message_type": "evaluate", "examples": 9, "metrics": {"acc": accuracy, "loss": 0.25}}
    record.add("exchange-done", train, 1.0)
    record.add("exchange-done", evaluate, 2.0)
    record.add("ended", {"status": "finished", "reason": ""}, 2.0)
    return ModeResult(mode=mode, record=record, wall_seconds=5.0)


def job(out: Path, **changes: Any) -> CompareJob:
    values = {"modes": ("federated", "centralized"), "clients": 2, "out": out, **changes}
    return CompareJob(app=FlowerApp.load(TINY), **values)


def test_the_report_holds_what_ran(tmp_path: Path) -> None:
    results = [result("federated", "secure", 0.5, 1500), result("centralized", "none", 0.75, 0)]
    report = write_report(job(tmp_path), results)
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(report))
    assert report["modes"]["federated"]["accuracy"] == 0.5
    assert report["modes"]["federated"]["curves"]["acc"] == [{"round": 1, "seconds": 2.0, "value": 0.5}]
    assert rows(report)[0] == ("federated", "0.5000", "0.2500", "3.0 kB", "-", "64", "2.0", "5.0")
    assert (tmp_path / "plot.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    text = (tmp_path / "report.md").read_text()
    assert all(column in text for column in COLUMNS)
    assert "plain" not in text


def test_a_plain_mode_is_said_to_be_readable(tmp_path: Path) -> None:
    report = write_report(job(tmp_path), [result("federated-plain", "plain", 0.5, 1)])
    assert "the server can read every update" in markdown(report)


def test_a_private_mode_shows_its_epsilon(tmp_path: Path) -> None:
    private = result("federated-dp", "secure", 0.5, 1)
    private.record.privacy = {"epsilon": 8.0, "delta": 1e-5}
    report = write_report(job(tmp_path), [result("federated", "secure", 0.5, 1), private])
    assert [row[5] for row in rows(report)] == ["64", "-"], "how many examples there are is private"
    assert "federated-dp: each client has (0.000, 1e-05)-differential privacy (budget 8)" in markdown(report)
    assert "federated: each client" not in markdown(report)


PRIVATE = {"clip-norm": 1.0, "dp-noise-multiplier": 1.0}


def test_noise_is_for_its_mode_alone(tmp_path: Path) -> None:
    made = job(tmp_path, modes=("federated", "federated-plain", "federated-dp"), settings=PRIVATE)
    settings = {mode: JobSettings.from_mapping(mode_settings(made, mode)) for mode in made.modes}
    assert {mode: (of.private, of.aggregation) for mode, of in settings.items()} == {
        "federated": (False, "secure"),
        "federated-plain": (False, "plain"),
        "federated-dp": (True, "secure"),
    }


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"settings": PRIVATE}, ConfigurationError, "the mode federated-dp go together"),
        ({"modes": ("federated-dp",)}, ConfigurationError, "the mode federated-dp go together"),
        ({"modes": ("federation",)}, ConfigurationError, "unknown mode 'federation'"),
        ({"modes": ("federated", "federated")}, ConfigurationError, "once"),
        ({"modes": ()}, ConfigurationError, "at least one"),
        ({"clients": 1}, ConfigurationError, "at least 2 clients"),
        ({"run_config": {"lrr": 1}}, UnknownKey, "did you mean 'lr'"),
        ({"settings": {"field-bit": 16}}, UnknownKey, "did you mean 'field-bits'"),
    ],
)
def test_a_wrong_job_is_refused_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        job(tmp_path, **changes)
