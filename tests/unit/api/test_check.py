"""`fedcore check`: each mistake that is planted in an app is found, in the words in which a deployment refuses it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny import TINY
from torch import nn
from typer.testing import CliRunner

import fedcore
from fedcore.cli.main import app
from fedcore.data import Split
from fedcore.errors import FedcoreError
from fedcore.federation import Policy
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.simulation import Simulation
from fedcore.training import OptimizerConfig
from fedcore.wire.operator import RunIn
from server_app.runs.plan import RunPlan

ROOT = Path(__file__).parents[3]
STEADY = ROOT / "tests" / "apps" / "steady"
LEGACY = ROOT / "tests" / "apps" / "legacy"
DIGITS = ROOT / "examples" / "digits"
NOOP = ROOT / "benchmarks" / "apps" / "noop"


@pytest.fixture
def copy(tmp_path: Path) -> Callable[..., Path]:
    """A copy of an app in which texts of its files are replaced."""

    def made(source: Path, **changes: tuple[str, str]) -> Path:
        folder = shutil.copytree(source, tmp_path / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        for name, (old, new) in changes.items():
            (path,) = [path for path in folder.rglob("*") if path.stem == name]
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new, 1))
        return folder

    return made


def deployment_says(folder: Path, clients: int, settings: dict[str, Any], run_config: dict[str, Any]) -> str:
    """What a server says of a submission, and what the round says in which it fails."""
    bundle = AppBundle.from_folder(folder)
    body = RunIn(
        app_sha256=bundle.sha256, files=dict(bundle.files), run_config=dict(run_config), settings=dict(settings)
    )
    owners = Policy.default(clients)
    try:
        plan = RunPlan.submitted("run", folder, body)
        plan.check(clients, owners.min_cohort)
        Simulation(
            app=FlowerApp.load(folder),
            clients=clients,
            run_config=plan.run_config,
            settings=plan.settings,
            policy=owners,
        ).run()
    except FedcoreError as error:
        return str(error)
    return ""


STRATEGIES = [{"strategy": name} for name in ("FedMedian", "Krum", "QFedAvg")]


@pytest.mark.parametrize(
    ("source", "settings", "run_config"),
    [
        (TINY, {"quorum": 2}, {}),
        (TINY, {"min-clients": 2}, {}),
        (TINY, {"min-clients": 9}, {}),
        (TINY, {"field_bits": 16}, {}),
        (TINY, {"field-bits": 17}, {}),
        (TINY, {"max-corrupt": 0.5}, {}),
        (TINY, {"dp-epsilon": 1.0}, {}),
        (TINY, {"dp-epsilon": 1.0, "clip-norm": 1.0}, {}),
        (TINY, {"dp-epsilon": 0.001, "clip-norm": 1.0, "dp-noise-multiplier": 0.5}, {}),
        (TINY, {"aggregation": "plain"}, {}),
        (TINY, {"aggregation": "plain", "upload-fraction": 0.25}, {}),
        (TINY, {"w-max": 2**60}, {}),
        (TINY, {"train-seconds": 90_000.0}, {}),
        (TINY, {"key-agreement": "x25519"}, {}),
        (TINY, {}, {"lr": 0.25}),
        (TINY, {}, {"lr": "fast"}),
        (TINY, {}, {"rounds": 3}),
        (TINY, {}, {"min-nodes": 9}),
        *((TINY, {}, config) for config in STRATEGIES),
        (TINY, {}, {"personal": True}),
        (LEGACY, {}, {"min-nodes": 9}),
    ],
    ids=str,
)
def test_what_a_deployment_refuses_is_found_in_its_words(
    source: Path, settings: dict[str, Any], run_config: dict[str, Any]
):
    words = deployment_says(source, 4, settings, run_config)
    assert words, "a deployment refuses it"
    report = fedcore.check(source, clients=4, policy="stock", settings=settings, run_config=run_config)
    found = [one.text for one in report.errors]
    assert [text for text in found if _core(text) == _core(words)], (words, found)


def test_settings_that_contradict_each_other_are_not_taken_for_the_defaults():
    """What the app itself says of other settings is still what its owners agreed to."""
    report = fedcore.check(DIGITS, settings={"aggregation": "plain", "upload-fraction": 0.25}, dry_round=False)
    assert [one.text for one in report.errors] == [
        'upload-fraction needs aggregation = "secure": a plain reply is sent as the app made it'
    ]
    assert not report.warnings


def _core(text: str) -> str:
    """Without the place that a setting was written in; of what owners refuse of a run's choices, the check's name.

    The server hears the name of the check and of the key, the owner's own log and `fedcore check` say all of it.
    """
    text = text.removeprefix("every client refused: ")
    if text.startswith(("config-not-allowed", "plain-not-allowed")):
        return text.replace(":", " ").split()[0]
    for place in ("the run's settings", "the run config of the app", "the run config", "settings"):
        text = text.replace(f" in {place}", "")
    return text


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", "ValueError: patient 17 is in this message (tiny_app/client_app.py:58)"),
        ("nan", "nan"),
        ("float64", "weight"),
        ("extra-array", "found tensor 'other'"),
        ("no-examples", "no 'num-examples'"),
        ("half-example", "whole number of examples, not 1.5"),
        ("too-many-examples", "w-max"),
        ("two-metrics", "exactly one MetricRecord, this one has 2"),
        ("no-arrays", "exactly one ArrayRecord, this one has 0"),
    ],
)
def test_what_a_client_app_does_wrong_is_found(copy: Callable[..., Path], fault: str, words: str):
    folder = copy(TINY, pyproject=('fault = ""\nfaulty-partition = -1', f'fault = "{fault}"\nfaulty-partition = 0'))
    report = fedcore.check(folder, clients=3)
    assert len(report.errors) == 1, report
    assert words.lower() in report.errors[0].text.lower()


def test_all_mistakes_are_said_and_not_the_first_alone(copy: Callable[..., Path]):
    folder = copy(
        TINY,
        pyproject=("field-bits = 32", "field-bits = 7\nunknown-key = 1\nquorum = 2\nmin-clients = 2"),
        client_app=('"eval_loss": loss(weight, x, y)', '"eval_loss": missing'),
        server_app=("strategy, name)", 'strategy, "FedMedian")'),
    )
    report = fedcore.check(folder, clients=4)
    text = repr(report)
    for words in (
        "field-bits", "unknown key 'unknown-key'", "quorum is 2", "min-clients is 2", "FedMedian cannot run",
        "name 'missing' is not defined (tiny_app/client_app.py:",
    ):  # fmt: skip
        assert words in text
    assert not report.ok


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pyproject": ("[tool.flwr.app.components]", "[tool.other]")}, "needs serverapp"),
        ({"pyproject": ("[project]", "[project")}, "cannot be read as TOML"),
        ({"client_app": ("import numpy", "import no_such_package\nimport numpy")}, "no_such_package"),
        ({"client_app": ("app = ClientApp()", "app = 3")}, "AttributeError"),
        ({"server_app": ("app = ServerApp()", "other = ServerApp()")}, "NameError"),
    ],
    ids=["no-components", "no-toml", "no-package", "no-client-app", "no-server-app"],
)
def test_an_app_that_cannot_be_loaded(copy: Callable[..., Path], change: dict[str, tuple[str, str]], words: str):
    report = fedcore.check(copy(TINY, **change), clients=3)
    assert words in repr(report)
    assert not report.ok


def test_a_folder_that_is_none_and_files_that_nobody_can_agree_to(tmp_path: Path, copy: Callable[..., Path]):
    assert "pyproject.toml" in repr(fedcore.check(tmp_path / "nothing"))
    folder = copy(TINY)
    (folder / "helper.so").write_bytes(b"")
    assert "helper.so" in repr(fedcore.check(folder, clients=3))


def test_a_good_app_passes_and_says_what_it_sends():
    report = fedcore.check(TINY, clients=3)
    assert report.ok
    assert report.facts["tensors"] == 3
    assert report.facts["bytes_up"] > 0
    assert [one.about for one in report.warnings] == ["run config"], "it has no seed"


@pytest.mark.parametrize(
    ("strategy", "line", "settings", "later", "second"),
    [
        ("FedAvg", "10mbit", {}, 2, 4),
        ("FedAvg", "10mbit", {"field-bits": "auto", "upload-fraction": 0.25}, 1, 1),
        ("FedAvg", "1gbit", {}, 4, 4),
        ("FedAvg", "10mbit", {"norm-proof": "l2", "clip-norm": 100.0}, 4, 4),
        ("FedAdam", "10mbit", {}, 4, 4),
        ("FedAdam", "10mbit", {"download-bits": 16}, 2, 2),
    ],
)
def test_on_a_slow_line_a_mean_is_as_small_as_its_sum(
    copy: Callable[..., Path], strategy: str, line: str, settings: dict[str, Any], later: int, second: int
):
    """Bytes an element that a client downloads; a change and a difference have some hundred bytes more.

    The second round is named if it takes longer.
    """
    folder = copy(NOOP, server_app=("strategy import FedAvg", f"strategy import {strategy} as FedAvg"))
    report = fedcore.check(
        folder, clients=3, run_config={"parameters": 100_000, "min-nodes": 3}, settings=settings, line=line
    )
    assert report.ok, report
    assert round(report.times["later rounds"].down / 100_000, 1) == later
    assert ("second round" in report.times) == (second > later)
    assert round(report.times.get("second round", report.times["later rounds"]).down / 100_000, 1) == second


def test_a_site_tests_its_own_file(copy: Callable[..., Path], tmp_path: Path):
    """With the node config that it will start its client with; where it lacks something, no round is tried."""
    folder = copy(
        TINY,
        pyproject=("[tool.fedcore]", '[tool.fedcore.node]\nrows = { type = "file", help = "rows" }\n[tool.fedcore]'),
    )
    assert [one.about for one in fedcore.check(folder, clients=3, node_config={}).errors] == ["the node config"]
    (tmp_path / "rows").write_text("1\n")
    assert fedcore.check(
        folder, clients=3, node_config={"rows": str(tmp_path / "rows"), "partition-id": 0, "num-partitions": 3}
    ).ok


def test_choices_are_warnings_until_a_policy_is_named():
    choices: dict[str, Any] = {"settings": {"aggregation": "plain"}, "run_config": {"lr": 0.25}}
    loose = fedcore.check(TINY, clients=3, **choices)
    assert loose.ok
    assert {"plain-not-allowed", "config-not-allowed"} <= {one.text.split(":")[0] for one in loose.warnings}
    assert len(fedcore.check(TINY, clients=3, policy="stock", **choices).errors) == 2
    assert fedcore.check(TINY, clients=3, policy="own", **choices).ok


def test_a_policy_file_is_asked(tmp_path: Path):
    path = tmp_path / "policy.toml"
    path.write_text("min-cohort = 3\nmin-threshold = 2\nmax-model-bytes = 10\nmax-epsilon = 1.0\n")
    text = repr(fedcore.check(TINY, clients=3, policy=path))
    assert "max-model-bytes" in text
    path.write_text("min-cohort = 3\nmin-threshold = 2\nmax-epsilon = 1.0\n")
    assert "privacy-required" in repr(fedcore.check(TINY, clients=3, policy=path))
    path.write_text("min-cohrt = 3\n")
    assert "min-cohort" in repr(fedcore.check(TINY, clients=3, policy=path))


def test_a_budget_that_does_not_last_is_said(tmp_path: Path):
    terms = {"dp-epsilon": 2.0, "dp-rounds": 2, "clip-norm": 1.0}
    report = fedcore.check(STEADY, clients=4, settings=terms, run_config={"size": 10, "num-server-rounds": 5})
    assert "the run ends before its 5 rounds are done: privacy-budget" in repr(report)
    assert report.ok


def test_metrics_that_settings_name_have_to_be_reported():
    report = fedcore.check(TINY, clients=3, settings={"evaluate-metrics": ["auc"]})
    assert "auc" in repr(report)
    assert not report.ok


def test_data_that_are_not_there_are_said(copy: Callable[..., Path]):
    work = '    before = loss(arrays["weight"], x, y)\n'
    folder = copy(TINY, client_app=(work, f'    open("/no/such/data.csv")\n{work}'))
    assert "No such file or directory: '/no/such/data.csv' (tiny_app/client_app.py:" in repr(fedcore.check(folder))
    assert "data.csv" not in repr(fedcore.check(folder, dry_round=False))


def test_an_app_of_this_process_is_checked():
    def data(job: fedcore.LocalJob) -> tuple[Split, Split]:
        part = Split(x=np.zeros((0, 3), np.float32), y=np.zeros(0, np.int64))
        return part, part

    app = fedcore.supervised_app(
        model=lambda config: nn.Linear(3, 2), optimizer=lambda config: OptimizerConfig(lr=0.5), data=data
    )
    assert not fedcore.check(app).ok


def test_the_command_ends_with_2_and_prints_json():
    runner = CliRunner()
    words = ["check", str(TINY), "--clients", "3", "--no-first-model", "--json"]
    done = runner.invoke(app, words)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["ok"] is True
    done = runner.invoke(app, [*words, "--set", "quorum=2"])
    assert done.exit_code == 2
    assert json.loads(done.stdout)["errors"][0]["about"] == "clients"
    done = runner.invoke(app, [*words[:-1], "--set", "quorum=2", "--no-round"])
    assert done.exit_code == 2
    assert "error    clients: quorum is 2" in done.stdout
    assert "tiny: 1 error and 1 warning among 3 clients" in done.stdout


def test_html_is_escaped(copy: Callable[..., Path]):
    folder = copy(TINY, pyproject=('name = "tiny"', 'name = "<script>"'))
    assert "<script>" not in fedcore.check(folder, dry_round=False)._repr_html_()


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
@pytest.mark.parametrize("derives", [True, False], ids=["stock", "own"])
def test_a_first_model_that_clients_derive_is_not_downloaded(derives: bool, aggregation: str) -> None:
    policy = None if derives else Policy.own(4, allow_plain=True)
    report = fedcore.check(STEADY, policy=policy, settings={"aggregation": aggregation}, line="1gbit,3ms")
    times, model = report.times, report.facts["model_bytes"]
    assert times["first round"].down == (0 if derives and aggregation == "secure" else model)
    assert times["later rounds"].down == model


@pytest.mark.parametrize("line", ["", "fast"])
def test_a_line_that_cannot_be_read_is_an_error(line: str) -> None:
    assert CliRunner().invoke(app, ["check", str(STEADY), "--line", line]).exit_code == 2
