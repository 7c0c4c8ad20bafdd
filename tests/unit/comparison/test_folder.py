"""The folder of a comparison: whose it is, and who may open it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.raising import raises
from support.tiny import TINY

from fedcore.comparison.app_probe import AppFacts
from fedcore.comparison.folder import JOB_FILE, OutFolder
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.plan import CompareJob
from fedcore.comparison.report import SiteSplit
from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp
from fedcore.simulation.devices.network import Cost


def job(out: Path, **changes: Any) -> CompareJob:
    values = {"modes": parse_modes("federated"), "sites": 2, "out": out, **changes}
    return CompareJob(app=FlowerApp.load(TINY), **values)


def test_the_same_job_finds_what_it_left(tmp_path: Path) -> None:
    folder, first = OutFolder(tmp_path / "out"), job(tmp_path / "out", sweep={"lr": (0.1, float("inf"))})
    facts = AppFacts(
        refusal="",
        split=(SiteSplit(site="client-1", training=3, test=1, labels={"0": 3}),),
        cost=Cost(step=1, example=2),
    )
    assert folder.facts() is None
    with folder.opened(first, force=False):
        folder.keep_facts(facts)
        (folder.path / "kept").touch()
    with folder.opened(first, force=False):
        assert (folder.path / "kept").exists()
        assert folder.facts() == facts
    with folder.opened(first, force=True):
        assert not (folder.path / "kept").exists()
        assert folder.facts() is None
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing is left beside it"


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"sites": 3}, "clients: 2 there, 3 here"),
        ({"seeds": (1, 2)}, "seeds: [] there, [1, 2] here"),
        ({"modes": parse_modes("federated,centralized")}, "modes: ['federated'] there, ['federated', 'centralized']"),
        ({"sweep": {"lr": (0.1,)}}, "set: {} there, {'lr': [0.1]} here"),
    ],
)
def test_another_job_is_refused_with_what_differs(tmp_path: Path, changes: dict[str, Any], difference: str) -> None:
    folder, first = OutFolder(tmp_path), job(tmp_path)
    with folder.opened(first, force=False):
        pass
    other = replace(first, **changes)
    with pytest.raises(ConfigurationError) as caught:
        folder.check(other, force=False)
    assert difference in str(caught.value)
    folder.check(other, force=True)


def test_a_changed_app_is_another_job(tmp_path: Path) -> None:
    folder, first = OutFolder(tmp_path / "out"), job(tmp_path / "out")
    with folder.opened(first, force=False):
        pass
    app = tmp_path / "app"
    for source in TINY.rglob("*"):
        if source.suffix in (".py", ".toml"):
            target = app / source.relative_to(TINY)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    folder.check(replace(first, app=FlowerApp.load(app)), force=False)
    (app / "tiny_app" / "problem.py").write_text("# another problem")
    with raises(ConfigurationError, check="other-comparison", match="app_sha256"):
        folder.check(replace(first, app=FlowerApp.load(app)), force=False)


def test_only_one_at_a_time(tmp_path: Path) -> None:
    folder = OutFolder(tmp_path / "out")
    with folder.opened(job(folder.path), force=False):
        for force in (False, True):
            with (
                raises(ConfigurationError, check="taken"),
                folder.opened(job(folder.path), force=force),
            ):
                raise AssertionError("opened twice")
    with folder.opened(job(folder.path), force=False):
        pass


def test_a_job_file_that_cannot_be_read(tmp_path: Path) -> None:
    for content in ("{", "[]", json.dumps({"schema": "other"})):
        (tmp_path / JOB_FILE).write_text(content)
        with raises(ConfigurationError, check="unreadable-job", match="--force"):
            OutFolder(tmp_path).check(job(tmp_path), force=False)
