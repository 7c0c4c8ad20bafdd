"""Where a training is cut into groups, robust strategies get the mean of each; nobody else gets more than one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common import ndarrays_to_parameters
from flwr.server import strategy as legacy
from flwr.serverapp import strategy
from flwr.serverapp.strategy import FedAvg, FedMedian
from flwr.supercore.task_identity import TaskIdentity
from support.raising import raises

from fedcore.errors import AppError
from fedcore.flower import group_means, mean_only
from fedcore.flower.grid.aggregation_guard import check_strategy
from fedcore.flower.grid.robust import Groups
from fedcore.flower.grid.secure_grid import SecureGrid
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.state import ModelState

NODES = tuple(range(1, 16))
MEANS = (1.0, 2.0, 3.0, 2.0, 1000.0)
"""By how much the mean of each group moves every weight; a poisoner is in the last."""
FIVE = Groups(5, 5)


@dataclass
class Cohort:
    """An ExchangeBackend with a reply for each group of a training."""

    asked: list[str] = field(default_factory=list)

    def nodes(self) -> list[int]:
        return list(NODES)

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        self.asked.append(request.message_type)
        if request.message_type != "train":
            return [ExchangeReply(node=0, state=None, examples=30, metrics={"loss": 1.0})]
        assert request.model is not None
        return [
            ExchangeReply(
                node=0,
                state=ModelState.from_arrays({name: array + np.float32(by) for name, array in request.model.items()}),
                examples=30,
                metrics={"loss": by},
            )
            for by in MEANS
        ]

    def report_figures(self, figures: Any) -> None:
        """What the strategy made of replies is not looked at."""

    def ask(self, request: Any) -> Any:
        raise AssertionError(request)


@pytest.fixture
def cohort() -> Cohort:
    return Cohort()


def grid_of(cohort: Cohort, monkeypatch: pytest.MonkeyPatch, groups: Groups | None = FIVE) -> SecureGrid:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 0)
    return SecureGrid(cohort, run_id=1, groups=groups)


def trained(cohort: Cohort, monkeypatch: pytest.MonkeyPatch, chosen: Any) -> float:
    """By how much one round moves a weight."""
    grid = grid_of(cohort, monkeypatch)
    result = chosen.start(grid, ArrayRecord({"0": Array(np.zeros(2, np.float32))}), num_rounds=1)
    assert cohort.asked == ["train", "evaluate"]
    return float(result.arrays["0"].numpy()[0])


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("FedAvg", {}, np.mean(MEANS)),
        ("FedMedian", {}, 2.0),
        ("FedTrimmedAvg", {"beta": 0.2}, np.mean([2.0, 3.0, 2.0])),
        ("Krum", {"num_malicious_nodes": 1}, 2.0),
        ("MultiKrum", {"num_malicious_nodes": 1, "num_nodes_to_select": 2}, 2.0),
        ("Bulyan", {"num_malicious_nodes": 0}, np.mean(MEANS)),
    ],
)
def test_flowers_strategies_work_on_the_means_of_groups(
    cohort: Cohort, monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, Any], expected: float
) -> None:
    assert trained(cohort, monkeypatch, getattr(strategy, name)(**arguments)) == pytest.approx(expected, rel=1e-5)


def test_without_groups_they_stay_refused_and_are_told_of_groups(
    cohort: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = grid_of(cohort, monkeypatch, None)
    with raises(AppError, check="secure-aggregation", match=r"FedMedian.*\bgroups\b"):
        FedMedian().start(grid, ArrayRecord({"0": Array(np.zeros(2, np.float32))}))
    assert cohort.asked == []


@pytest.mark.parametrize(
    ("chosen", "groups", "match"),
    [
        (strategy.FedMedian(), Groups(3, 2), {"check": "group-count", "match": "FedMedian.*min-groups = 3$"}),
        (strategy.FedMedian(), Groups(2, 2), {"check": "group-count", "match": "min-groups = 3.*groups = 3"}),
        (strategy.FedTrimmedAvg(beta=0.2), Groups(6, 4), {"check": "group-count", "match": r"FedTrimmedAvg\D+5"}),
        (strategy.FedTrimmedAvg(beta=0.0), Groups(6, 4), {"check": "nothing-trimmed", "match": "beta"}),
        (strategy.Krum(num_malicious_nodes=2), Groups(8, 6), {"check": "group-count", "match": r"Krum\D+7"}),
        (strategy.Bulyan(num_malicious_nodes=1), Groups(8, 6), {"check": "group-count", "match": r"Bulyan\D+7"}),
        (legacy.Krum(num_malicious_clients=2), Groups(8, 6), {"check": "group-count", "match": r"Krum\D+7"}),
        (legacy.FedTrimmedAvg(beta=0.1), Groups(9, 9), {"check": "group-count", "match": r"FedTrimmedAvg\D+10"}),
    ],
)
def test_too_few_groups_for_what_a_strategy_promises(chosen: Any, groups: Groups, match: dict[str, str]) -> None:
    with raises(AppError, **match):
        check_strategy(chosen, groups)


@pytest.mark.parametrize("name", ["FedAvg", "FedMedian", "FedTrimmedAvg", "Krum", "Bulyan", "FedAdam"])
def test_the_legacy_ones_too(name: str) -> None:
    start = {"initial_parameters": ndarrays_to_parameters([np.zeros(2, np.float32)])}
    check_strategy(getattr(legacy, name)(**start), Groups(12, 12))


@pytest.mark.parametrize("name", ["QFedAvg", "FedXgbBagging"])
def test_what_needs_single_updates_stays_refused(name: str) -> None:
    arguments = {"client_learning_rate": 0.1} if name == "QFedAvg" else {}
    with raises(AppError, check="secure-aggregation"):
        check_strategy(getattr(strategy, name)(**arguments), FIVE)


@mean_only
def of_one(contents: Any, weight_key: str) -> MetricRecord:
    """Speaks of one reply."""
    del weight_key
    return contents[0]["metrics"]  # type: ignore[no-any-return]


@group_means
def of_groups(contents: Any, weight_key: str) -> MetricRecord:
    """Speaks of as many as there are groups."""
    del weight_key
    return MetricRecord({"most": max(float(content["metrics"]["loss"]) for content in contents)})


def test_who_speaks_of_one_reply_does_not_speak_of_groups(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    check_strategy(FedAvg(train_metrics_aggr_fn=of_one))
    check_strategy(FedAvg(evaluate_metrics_aggr_fn=of_one), FIVE)
    with raises(AppError, check="undeclared", match="train_metrics_aggr_fn"):
        check_strategy(FedAvg(train_metrics_aggr_fn=of_one), FIVE)
    with raises(AppError, check="undeclared", match="train_metrics_aggr_fn"):
        check_strategy(FedAvg(train_metrics_aggr_fn=of_groups))
    check_strategy(FedAvg(train_metrics_aggr_fn=of_groups), FIVE)
    assert trained(cohort, monkeypatch, FedAvg(train_metrics_aggr_fn=of_groups)) == pytest.approx(np.mean(MEANS))


def test_a_selection_rule_of_the_apps_own_has_to_be_declared() -> None:
    def rule(contents: Any, bad: int, count: int) -> Any:
        return contents[:count]

    with raises(AppError, check="undeclared", match="selection_rule"):
        check_strategy(strategy.Bulyan(num_malicious_nodes=0, selection_rule=rule), FIVE)
    check_strategy(strategy.Bulyan(num_malicious_nodes=0, selection_rule=group_means(rule)), FIVE)


def test_a_loop_of_the_apps_own_has_to_be_declared(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = grid_of(cohort, monkeypatch)

    def ask() -> list[Message]:
        content = RecordDict({"arrays": ArrayRecord({"w": Array(np.ones(2, np.float32))})})
        return list(grid.send_and_receive([Message(content, node, "train") for node in NODES]))

    with raises(AppError, check="undeclared-loop"):
        mean_only(ask)()
    replies = group_means(ask)()
    assert len(replies) == len(MEANS)
    assert len({reply.metadata.src_node_id for reply in replies}) == len(MEANS)
