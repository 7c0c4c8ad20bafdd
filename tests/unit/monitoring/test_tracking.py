"""What trackers are told, and what becomes of one that fails."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.events import event

from fedcore.errors import ConfigurationError
from fedcore.monitoring.trackers import Track, TrackedRun, Tracker, Tracking, parse_tracks
from fedcore.monitoring.trackers.figures import Figures
from fedcore.wire.events import FiguresFound

RUN = TrackedRun(name="run-1", app="tiny", run="1f2e", run_config={"lr": 0.5}, settings={"evaluate-metrics": ["a"]})


class Noting:
    """A tracker that keeps what it is told, until it breaks."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.told: list[object] = []
        self._breaks = breaks

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.told.append((step, dict(values)))
        if self._breaks:
            raise OSError("the disk is full\nat line 3")

    def keep(self, file: Path, kind: str) -> None:
        self.told.append((kind, file.name))

    def close(self, *, succeeded: bool) -> None:
        self.told.append(succeeded)


def begin(trackers: Mapping[str, Tracker], said: list[str], monkeypatch: pytest.MonkeyPatch) -> Tracking:
    monkeypatch.setattr(Track, "open", lambda track, run: trackers[track.where])
    return Tracking.begin([Track("tensorboard", where) for where in trackers], RUN, said.append)


def test_figures_by_round() -> None:
    figures = Figures()
    assert figures.of(event("dropped")) is None
    step, values = figures.of(
        event("exchange-done", server_round=3, bytes_up={"a": 5, "b": 6}, bytes_down={"a": 1}, epsilon_spent=0.5,
              metrics={"loss": 0.25, "by_class": [1.0, 2.0], "histogram": [0.0] * 99})
    )  # fmt: skip
    assert step == 3
    assert values == {
        "train/loss": 0.25, "train/by_class/0": 1.0, "train/by_class/1": 2.0, "train/seconds": 0.5,
        "train/clients": 2, "train/dropped": 1, "train/contributed_nothing": 0, "traffic/bytes_up": 11,
        "traffic/bytes_down": 1, "privacy/epsilon": 0.5,
    }  # fmt: skip
    assert figures.of(event("exchange-done", message_type="query.statistics", bytes_up={"a": 9})) is None
    _, values = figures.of(event("exchange-done", message_type="evaluate", metrics={"acc": 1.0}))
    assert (values["evaluate/acc"], values["evaluate/dropped"], values["traffic/bytes_up"]) == (1.0, 0, 20)
    assert "privacy/epsilon" not in values


def test_what_the_serverapp_found_is_told_by_round() -> None:
    found = FiguresFound(server_round=10, source="server", metrics={"loss": 0.1, "both": [1.0, 2.0]})
    assert Figures().of(found) == (10, {"app/server/loss": 0.1, "app/server/both/0": 1.0, "app/server/both/1": 2.0})


def test_parameters_and_tags_are_told_apart() -> None:
    assert RUN.parameters() == {"config/lr": 0.5, "settings/evaluate-metrics": "['a']"}
    assert RUN.all_tags() == {"app": "tiny", "run": "1f2e"}


def test_a_tracker_that_fails_is_warned_of_once_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, said = Noting(), Noting(breaks=True), []
    model = tmp_path / "model.safetensors"
    model.touch()
    with begin({"/bad": bad, "/good": good}, said, monkeypatch) as tracking:
        for number in (1, 2):
            tracking(event("exchange-done", server_round=number))
        tracking(event("ended"))
        tracking.keep(model)
    assert len(said) == 1
    assert said[0] == (
        "tensorboard in /bad failed and is told nothing more, the run goes on: OSError: the disk is full"
    )
    assert len(bad.told) == 1
    assert [one[0] for one in good.told[:2]] == [1, 2]
    assert good.told[2:] == [("model", "model.safetensors"), True]


def test_a_tracker_that_cannot_begin_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with begin({}, said, monkeypatch) as tracking:
        tracking(event("exchange-done"))
    monkeypatch.setattr(Track, "open", lambda track, run: 1 / 0)
    with Tracking.begin([Track("mlflow", "http://127.0.0.1:1")], RUN, said.append) as tracking:
        tracking(event("exchange-done"))
    assert len(said) == 1
    assert said[0].startswith("mlflow:http://127.0.0.1:1 failed")


def test_a_run_that_fails_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = Noting()
    with begin({"/x": tracker}, [], monkeypatch) as tracking:
        tracking(event("ended", status="failed"))
    assert tracker.told == [False]


def test_what_can_be_known_before_is_refused_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for text, reason in (
        ("neptune", "'neptune'.*mlflow.*tensorboard.*wandb"),
        (f"wandb:{tmp_path}/file/x", "/file/x"),
        (f"mlflow:{tmp_path}/file", "/file"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            parse_tracks([text])
    assert parse_tracks(None) == ()
    assert Track.parse("mlflow:sqlite:///x.db").is_address
    assert Track.parse(f"tensorboard:{tmp_path}/new").folder == tmp_path / "new"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"fedcore\[tracking\]"):
        parse_tracks(["wandb"])
