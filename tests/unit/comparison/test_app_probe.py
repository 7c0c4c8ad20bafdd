"""What is found out about an app before its comparison; here in this process, the command tests have the real one."""

from pathlib import Path
from typing import Any

import pytest
from support.raising import raises
from support.tiny import TINY

from fedcore.comparison.app_probe import AppFacts, Unreadable, report_facts
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.plan import CompareJob, plan
from fedcore.comparison.workers.models import first_of
from fedcore.comparison.workers.problem import Problem
from fedcore.comparison.workers.processes import WorkerReport
from fedcore.comparison.workers.server_app import train_centralized
from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp
from fedcore.simulation.devices.network import Network
from fedcore.training.models import digits_mlp

DIGITS = Path(__file__).parents[3] / "examples" / "digits"
BLOBS = Path(__file__).parents[2] / "apps" / "blobs"
SETS = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedcore import supervised_app
from fedcore.training import OptimizerConfig


def part(count):
    return TensorDataset(torch.randn(count, 6), torch.arange(count) % {classes})


app = supervised_app(
    model=lambda config: nn.Linear(6, {classes}),
    optimizer=lambda config: OptimizerConfig(lr=0.1),
    data=lambda job: (part(30), part(20)),
)
"""
TOKENS = Path(__file__).parents[2] / "apps" / "tokens"


def found_in(app: Path, network: str = "none", **config: Any) -> WorkerReport:
    job = CompareJob(
        app=FlowerApp.load(app),
        modes=parse_modes("federated"),
        sites=3,
        out=Path("/nowhere"),
        network=Network.parse(network),
        run_config=config,
    )
    (run,) = plan(job)
    reports: list[WorkerReport] = []
    report_facts(reports.append, run)
    (report,) = reports
    # As it comes out of the worker, and out of job.json.
    return WorkerReport.decoded(report.encoded())


def test_the_split_is_that_of_the_app() -> None:
    found = found_in(DIGITS, "lan,step=2ms,example=1ms")
    assert isinstance(found, AppFacts)
    assert AppFacts.model_validate(found.model_dump(mode="json")) == found
    assert (found.refusal, found.cost and (found.cost.step, found.cost.example)) == ("", (0.002, 0.001))
    app = FlowerApp.load(DIGITS)
    problem = Problem.load(app, config=app.run_config, sites=3)
    for site, part in enumerate(found.split):
        split = problem.training(site)
        assert part.site == f"client-{site + 1}"
        assert part.training == len(split)
        assert part.labels == {str(label): int((split.y == label).sum()) for label in sorted(set(split.y.tolist()))}
    found.check(parse_modes("ps-ssp,local"))


def test_an_app_that_trains_in_its_own_way_is_refused_for_some_modes() -> None:
    found = found_in(TINY)
    assert isinstance(found, AppFacts)
    assert found.split == ()
    found.check(parse_modes("federated,centralized"))
    with raises(ConfigurationError, check="modes-refused", match=r"local.*ps-ssp\[s=1\].*supervised_app"):
        found.check(parse_modes("federated,local,ps-ssp[s=1]"))


def test_a_local_app_is_told_what_to_write() -> None:
    found = found_in(TOKENS)
    assert isinstance(found, AppFacts)
    with raises(ConfigurationError, check="modes-refused", match=r"diloco.*local_app\(\.\.\., data="):
        found.check(parse_modes("federated,diloco"))


@pytest.mark.parametrize("config", [{"strategy": "ditto"}, {"strategy": "fedper", "personal-layers": "2.*"}])
def test_a_strategy_that_keeps_models_on_clients_needs_a_federation(config: dict[str, Any]) -> None:
    found = found_in(DIGITS, **config)
    assert isinstance(found, AppFacts)
    found.check(parse_modes("federated,federated-plain"))
    refused = rf"centralized.*local.*diloco.*{config['strategy']}"
    with raises(ConfigurationError, check="modes-refused", match=refused):
        found.check(parse_modes("federated,centralized,local,diloco"))
    assert [mode.kind for mode in parse_modes("federated,local") if found.allows(mode)] == ["federated"]


def test_other_strategies_leave_the_baselines_as_they_are() -> None:
    found = found_in(DIGITS, strategy="scaffold")
    assert isinstance(found, AppFacts)
    found.check(parse_modes("federated,centralized,local,ps-async"))


def test_the_first_model_is_the_model_alone() -> None:
    """Baselines begin with it, and control variates are nothing that they train; clients are sent both."""
    job = CompareJob(
        app=FlowerApp.load(DIGITS),
        modes=parse_modes("local"),
        sites=2,
        out=Path("/nowhere"),
        run_config={"strategy": "scaffold"},
    )
    (run,) = plan(job)
    first = first_of(run)
    assert list(first.model) == list(digits_mlp().state_dict())
    assert set(first.sent) - set(first.model) == {f"control/{name}" for name in first.model}


def test_pooled_data_are_not_one_client_of_several() -> None:
    """The ServerApp of an app that says nothing of its data would count one client of three in every sum."""
    found = AppFacts(refusal="its local_app does not say on which data", strategy="scaffold")
    found.check(parse_modes("federated"))
    with raises(ConfigurationError, check="modes-refused", match="centralized.*scaffold"):
        found.check(parse_modes("centralized"))


@pytest.mark.parametrize("first", ["fedavg", "ditto"])
def test_models_that_are_judged_in_different_ways_are_not_compared(first: str) -> None:
    found = found_in(DIGITS, strategy=first)
    assert isinstance(found, AppFacts)
    job = CompareJob(
        app=FlowerApp.load(DIGITS),
        modes=parse_modes("federated"),
        sites=2,
        out=Path("/nowhere"),
        sweep={"strategy": ("fedavg", "ditto")},
    )
    with raises(ConfigurationError, check="two-judgements", match="ditto.*fedavg"):
        found.check_strategies(plan(job))
    found.check_strategies(plan(job)[:1])


def test_the_metrics_are_known_before_the_first_run() -> None:
    found = found_in(DIGITS)
    assert isinstance(found, AppFacts)
    assert list(found.metrics.items()) == [("accuracy", "max"), ("loss", "min")]
    own = found_in(TINY)
    assert isinstance(own, AppFacts)
    assert own.metrics == {}


@pytest.mark.parametrize(("classes", "exact"), [(2, True), (3, False)])
def test_datasets_of_two_classes_have_exact_figures_too(tmp_path: Path, classes: int, exact: bool) -> None:
    """Nobody reads all examples to count their labels."""
    (tmp_path / f"sets{classes}_app.py").write_text(SETS.format(classes=classes))
    project = (BLOBS / "pyproject.toml").read_text()
    project = project.replace("blobs_app.client_app:app", f"sets{classes}_app:app")
    (tmp_path / "pyproject.toml").write_text(project)
    found = found_in(tmp_path)
    assert isinstance(found, AppFacts)
    assert found.split[0].labels is None
    assert list(found.metrics) == ["accuracy", "loss", *(["auc", "brier", "ece"] if exact else [])]


def test_a_loss_over_batches_is_refused_where_a_batch_is_divided() -> None:
    found = AppFacts(refusal="", batch_loss="cox")
    found.check(parse_modes("centralized,local,local-sgd,diloco,ps-async,ps-ssp,federated,federated-plain"))
    refused = r"^--modes allreduce, ps-sync, centralized\[ranks=2\]: .*cox"
    with raises(ConfigurationError, check="modes-refused", match=refused):
        found.check(parse_modes("allreduce,ps-sync,centralized[ranks=2],federated"))


def test_data_that_cannot_be_divided_are_refused() -> None:
    found = found_in(DIGITS, partition="halves")
    assert isinstance(found, Unreadable)
    assert "halves" in found.reason


def test_an_option_without_effect_is_refused_by_name() -> None:
    job = CompareJob(
        app=FlowerApp.load(TINY), modes=parse_modes("centralized[global-batch=8]"), sites=2, out=Path("/nowhere")
    )
    (run,) = plan(job)
    with raises(ConfigurationError, check="global-batch", match="supervised_app"):
        train_centralized(lambda report: None, run)


def test_labels_of_the_test_examples_are_counted_too() -> None:
    found = found_in(DIGITS)
    assert isinstance(found, AppFacts)
    problem = Problem.load(FlowerApp.load(DIGITS), config=FlowerApp.load(DIGITS).run_config, sites=3)
    labels = problem.test(0).y.tolist()
    assert found.split[0].test_labels == {str(label): labels.count(label) for label in sorted(set(labels))}
