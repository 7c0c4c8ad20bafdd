"""What is kept of a simulation: a secure one that was broken off goes on with its scales, budget and transcript."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.events import told
from support.raising import raises
from support.tiny import TINY

from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.simulation.checkpoint.serialization import from_json, to_json
from fedcore.system.assignments import override
from fedcore.wire.events import RunEvent

PRIVATE = {"clip-norm": 1.0, "dp-noise-multiplier": 4.0, "dp-metric-bound": 10.0, "evaluate-metrics": ["eval_loss"]}


BUFFERED = {"asynchrony": "buffered", "buffer-size": 4, "concurrency": 8}
DRAWING = TINY.with_name("drawing")
"""An app without whole numbers in its model, which privacy allows; it evaluates as the other one does."""


class Broken(Exception):
    """Stands for the end of the process."""


def simulation(
    folder: Path, events: list[RunEvent], *, breaks: int = 0, settings: Mapping[str, Any] | None = None
) -> Simulation:
    app = FlowerApp.load(DRAWING if settings else TINY)

    def emit(event: RunEvent) -> None:
        events.append(event)
        if breaks and sum(one.kind == "exchange-done" for one in events) == breaks:
            raise Broken

    return Simulation(
        app=app,
        clients=12,
        run_config=override(app.run_config, {"num-server-rounds": 3}, "test"),
        settings=JobSettings.from_mapping({**app.settings.to_mapping(), **(settings or {})}),
        drop=0.02,
        seed=1,
        state=folder,
        emit=emit,
    )


@dataclass(frozen=True)
class Finished:
    """A run that was broken off, or not, and went on to its end; what was told of it then."""

    simulation: Simulation
    events: list[RunEvent]
    weight: Any

    def done(self) -> list[dict[str, Any]]:
        return [told(event) for event in self.events if event.kind == "exchange-done"]


def run_to_its_end(folder: Path, breaks: int, settings: Mapping[str, Any] | None = None) -> Finished:
    if breaks:
        with pytest.raises(Broken):
            simulation(folder, [], breaks=breaks, settings=settings).run()
    events: list[RunEvent] = []
    again = simulation(folder, events, settings=settings)
    outcome = again.run()
    assert outcome.state is not None
    return Finished(again, events, outcome.state["weight"])


class TestSecure:
    @pytest.mark.parametrize("breaks", [1, 2, 4])
    def test_it_goes_on_as_it_would_have(self, tmp_path: Path, breaks: int) -> None:
        calm, late = run_to_its_end(tmp_path / "calm", 0), run_to_its_end(tmp_path / "late", breaks)
        assert np.allclose(calm.weight, late.weight, atol=1e-4)
        done, again = calm.done(), late.done()
        for name in ("exchange", "server_round", "survivors", "examples", "bytes_up"):
            assert [one[name] for one in again] == [one[name] for one in done], name
        ours, theirs = late.simulation.owners, calm.simulation.owners
        assert len(ours.chain.links) == len(theirs.chain.links) == len(done)
        assert all(ours.history(client).entered == theirs.history(client).entered for client in range(1, 13))

    def test_the_budget_that_was_spent_stays_spent(self, tmp_path: Path) -> None:
        calm, late = (run_to_its_end(tmp_path / str(breaks), breaks, PRIVATE) for breaks in (0, 3))
        spent = [one["epsilon_spent"] for one in calm.done()]
        assert [one["epsilon_spent"] for one in late.done()] == spent
        assert all(spent)

    def test_a_run_that_is_over_is_told_again(self, tmp_path: Path) -> None:
        first, second = (run_to_its_end(tmp_path / "run", 0) for _ in range(2))
        assert np.array_equal(first.weight, second.weight)
        assert [event for event in second.events if event.kind != "resumed"] == first.events

    def test_a_folder_with_something_else_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("ten years of work")
        with raises(ConfigurationError, check="other-content"):
            simulation(tmp_path, [])
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    def test_a_run_without_rounds_cannot_be_kept(self, tmp_path: Path) -> None:
        with raises(ConfigurationError, check="without-rounds"):
            simulation(tmp_path / "run", [], settings=BUFFERED)

    def test_a_run_that_never_began_leaves_its_folder_to_another(self, tmp_path: Path) -> None:
        place = tmp_path / "run"
        with raises(ConfigurationError, check="too-few-for-groups", match=r"groups = 5.*15"):
            simulation(place, [], settings={"groups": 5})
        run_to_its_end(place, 0)  # nobody holds it any more
        with raises(ConfigurationError, check="other-run", match=r"app.*settings"):
            simulation(place, [], settings={"w-max": 99})
        run_to_its_end(place, 0)

    def test_a_place_that_cannot_be_a_folder_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigurationError, match=r"--state.*file.*File"):
            simulation(tmp_path / "file", [])

    def test_two_at_once_are_refused(self, tmp_path: Path) -> None:
        first = simulation(tmp_path / "run", [])
        with raises(ConfigurationError, check="taken", match="--state"):
            simulation(tmp_path / "run", [])
        del first


class TestMemento:
    def test_there_and_back(self) -> None:
        value = {("a", 1): [b"\x00\xff", {2, 3}, frozenset({4}), np.arange(6).reshape(2, 3)], 5: (None, True, 1.5)}
        found = from_json(to_json(value))
        assert np.array_equal(found["a", 1][3], value["a", 1][3])  # type: ignore[index]
        assert found["a", 1][:3] == value["a", 1][:3]
        assert found[5] == value[5]

    @pytest.mark.parametrize(
        "name", ["os:system", "fedcore.system.files:write_file", "subprocess:Popen", "fedcore.errors:FedcoreError"]
    )
    def test_a_file_names_no_code_to_run(self, name: str) -> None:
        with raises(ConfigurationError, check="unsound-state"):
            from_json({"type": name, "fields": {}})
