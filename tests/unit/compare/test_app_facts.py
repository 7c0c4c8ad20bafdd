"""What is found out about an app before its comparison; here in this process, the command tests have the real one."""

from pathlib import Path
from typing import Any

import pytest
from support.tiny import TINY

from fedcore.compare.app_facts import AppFacts, Unreadable, _find_facts
from fedcore.compare.measure.network import Network
from fedcore.compare.modes import parse_modes
from fedcore.compare.plan import CompareJob, plan
from fedcore.compare.workers.problem import Problem
from fedcore.compare.workers.processes import WorkerReport
from fedcore.compare.workers.server_app import train_centralized
from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp

DIGITS = Path(__file__).parents[3] / "examples" / "digits"
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
    _find_facts(reports.append, run)
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
    with pytest.raises(ConfigurationError, match=r"--modes local, ps-ssp\[s=1\]: .*supervised_app"):
        found.check(parse_modes("federated,local,ps-ssp[s=1]"))


def test_a_local_app_is_told_what_to_write() -> None:
    found = found_in(TOKENS)
    assert isinstance(found, AppFacts)
    with pytest.raises(ConfigurationError, match=r"--modes diloco: .*write local_app\(\.\.\., data=lambda job: "):
        found.check(parse_modes("federated,diloco"))


def test_the_metrics_are_known_before_the_first_run() -> None:
    found = found_in(DIGITS)
    assert isinstance(found, AppFacts)
    assert list(found.metrics.items()) == [("accuracy", "max"), ("loss", "min")]
    own = found_in(TINY)
    assert isinstance(own, AppFacts)
    assert own.metrics == {}


def test_a_loss_over_batches_is_refused_where_a_batch_is_divided() -> None:
    found = AppFacts(refusal="", batch_loss="cox")
    found.check(parse_modes("centralized,local,local-sgd,diloco,ps-async,ps-ssp,federated,federated-plain"))
    with pytest.raises(ConfigurationError) as caught:
        found.check(parse_modes("allreduce,ps-sync,centralized[ranks=2],federated"))
    assert str(caught.value).startswith(
        "--modes allreduce, ps-sync, centralized[ranks=2]: the loss cox is over a whole"
    )


def test_data_that_cannot_be_divided_are_refused() -> None:
    found = found_in(DIGITS, partition="halves")
    assert isinstance(found, Unreadable)
    assert "halves" in found.reason


def test_an_option_without_effect_is_refused_by_name() -> None:
    job = CompareJob(
        app=FlowerApp.load(TINY), modes=parse_modes("centralized[global-batch=8]"), sites=2, out=Path("/nowhere")
    )
    (run,) = plan(job)
    with pytest.raises(ConfigurationError, match=r"global-batch cannot be set for this app: .*supervised_app"):
        train_centralized(lambda report: None, run)
