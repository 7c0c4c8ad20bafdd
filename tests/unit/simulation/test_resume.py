"""What is kept of a simulation: a secure one that was broken off goes on with its scales, budget and transcript."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.events import told
from support.raising import raises
from support.tiny import TINY

from fedcore.errors import ConfigurationError
from fedcore.federation.transcript import Chain
from fedcore.flower.app import FlowerApp
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.simulation.checkpoint.generators import restore_generators, save_generators
from fedcore.simulation.checkpoint.state_folder import FORMAT, RUN_FILE
from fedcore.system.assignments import override
from fedcore.wire.events import RunEvent

PRIVATE = {"clip-norm": 1.0, "dp-noise-multiplier": 4.0, "dp-metric-bound": 10.0, "evaluate-metrics": ["eval_loss"]}


BUFFERED = {"asynchrony": "buffered", "buffer-size": 4, "concurrency": 8}
DRAWING = TINY.with_name("drawing")
"""An app without whole numbers in its model, which privacy allows; it evaluates as the other one does."""


class Broken(Exception):
    """Stands for the end of the process."""


class Nobody:
    """A dropout model of a test's own, in which all stay."""

    def drops_at_step(self, cohort: Sequence[int]) -> dict[int, str]:
        return {}

    def drops(self, cohort: Sequence[int]) -> Collection[int]:
        return ()


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
        again_linked = Chain()
        for link in ours.chain.links:
            assert link.previous == again_linked.head
            again_linked.add(link)
        assert ours.chain.head == again_linked.head

    def test_the_budget_that_was_spent_stays_spent(self, tmp_path: Path) -> None:
        calm, late = (run_to_its_end(tmp_path / str(breaks), breaks, PRIVATE) for breaks in (0, 3))
        spent = [one["epsilon_spent"] for one in calm.done()]
        assert [one["epsilon_spent"] for one in late.done()] == spent
        assert all(spent)

    def test_a_run_that_is_over_is_told_again(self, tmp_path: Path) -> None:
        first, second = (run_to_its_end(tmp_path / "run", 0) for _ in range(2))
        assert np.array_equal(first.weight, second.weight)
        assert [event for event in second.events if event.kind != "resumed"] == first.events

    def test_an_app_that_does_not_repeat_itself_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(Broken):
            simulation(tmp_path, [], breaks=2).run()
        file = next(path for path in sorted((tmp_path / "steps").glob("*.json")) if '"exchange"' in path.read_text())
        step = json.loads(file.read_text())
        step["request"]["model"] = "0" * 64
        file.write_text(json.dumps(step))
        with raises(ConfigurationError, check="request-differs", number=int(file.stem), fields=["model"]):
            simulation(tmp_path, []).run()

    def test_a_folder_with_something_else_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("ten years of work")
        with raises(ConfigurationError, check="other-content"):
            simulation(tmp_path, []).run()
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    def test_what_a_run_left_that_was_killed_as_it_began_is_no_other_content(self, tmp_path: Path) -> None:
        (tmp_path / "steps").mkdir()
        (tmp_path / ".run.json.3754b8e8.part").write_text("{")
        run_to_its_end(tmp_path, 0)
        assert (tmp_path / "run.json").exists()

    def test_a_run_without_rounds_cannot_be_kept(self, tmp_path: Path) -> None:
        with raises(ConfigurationError, check="without-rounds"):
            simulation(tmp_path / "run", [], settings=BUFFERED).run()

    def test_a_dropout_model_that_cannot_be_saved_is_refused(self, tmp_path: Path) -> None:
        run = simulation(tmp_path / "run", [])
        run.dropouts = Nobody()
        with raises(ConfigurationError, check="custom-dropouts"):
            run.run()

    def test_nothing_happens_before_it_runs(self, tmp_path: Path) -> None:
        simulation(tmp_path / "run", [])
        assert not any(tmp_path.iterdir())

    def test_a_run_that_never_began_leaves_its_folder_to_another(self, tmp_path: Path) -> None:
        place = tmp_path / "run"
        with raises(ConfigurationError, check="too-few-for-groups", match=r"groups = 5.*15"):
            simulation(place, [], settings={"groups": 5}).run()
        run_to_its_end(place, 0)  # nobody holds it any more
        with raises(ConfigurationError, check="other-run", match=r"app.*settings"):
            simulation(place, [], settings={"w-max": 99}).run()
        run_to_its_end(place, 0)

    def test_a_place_that_cannot_be_a_folder_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigurationError, match=r"--state.*file.*File"):
            simulation(tmp_path / "file", []).run()

    def test_two_at_once_are_refused(self, tmp_path: Path) -> None:
        with simulation(tmp_path / "run", []).open(), raises(ConfigurationError, check="taken", match="--state"):
            simulation(tmp_path / "run", []).run()


class TestStateFolder:
    def test_the_format_of_another_version_is_refused(self, tmp_path: Path) -> None:
        run_to_its_end(tmp_path, 0)
        file = tmp_path / RUN_FILE
        document = json.loads(file.read_text())
        for other in (FORMAT - 1, FORMAT + 1):
            file.write_text(json.dumps({**document, "format": other}))
            with raises(ConfigurationError, check="other-format"):
                run_to_its_end(tmp_path, 0)
        del document["format"]  # the first one did not say it
        file.write_text(json.dumps(document))
        with raises(ConfigurationError, check="other-format"):
            run_to_its_end(tmp_path, 0)

    @pytest.mark.parametrize(
        "altered",
        [
            {"dropouts": {"type": "os:system", "fields": {}}},
            {"owners": {"links": [{"type": "subprocess:Popen"}], "histories": {}}},
            {"owners": {"links": [], "histories": {"1": {"entered": "many"}}}},
            {"ends": [[{}, {}]]},
            {"models": None},
        ],
        ids=["generator", "chain", "history", "exchange", "models"],
    )
    def test_what_fedcore_did_not_write_is_refused(self, tmp_path: Path, altered: dict[str, Any]) -> None:
        run_to_its_end(tmp_path, 0)
        file = tmp_path / "steps" / "2.json"
        step = json.loads(file.read_text())
        step["checkpoint"] |= altered
        file.write_text(json.dumps(step))
        with raises(ConfigurationError, check="unsound-state"):
            run_to_its_end(tmp_path, 0)


class TestGenerators:
    def test_they_go_on_as_they_would_have(self) -> None:
        random.gauss()  # one of a pair of values is left
        saved = json.loads(json.dumps(save_generators()))
        before = random.random(), random.gauss(), np.random.random(), np.random.normal()
        restore_generators(saved)
        assert (random.random(), random.gauss(), np.random.random(), np.random.normal()) == before

    @pytest.mark.parametrize("altered", [{"random": [3]}, {"numpy": "PCG64"}, {"torch": 5}])
    def test_others_are_refused(self, altered: dict[str, Any]) -> None:
        with raises(ConfigurationError, check="unsound-state"):
            restore_generators({**save_generators(), **altered})
