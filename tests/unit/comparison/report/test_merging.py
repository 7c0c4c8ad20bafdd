"""Reports laid over one another: seeds are seeds, values are axes, simulations say so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.comparisons import made_up, made_up_run

from fedcore.comparison.report import Comparison, merge, pool
from fedcore.comparison.report.fairness import broken, fairness
from fedcore.comparison.report.story import headline
from fedcore.comparison.report.summary import summarize
from fedcore.comparison.report.tables import settings_rows
from fedcore.comparison.report.verdicts.pairs import claims_of
from fedcore.simulation.devices.network import Network

LAN = Network.parse("lan")


def report(*seeds: int, mode: str = "federated", simulation: bool = False, **changes: Any) -> Comparison:
    made = made_up(mode, runs=tuple(made_up_run(mode, seed=seed) for seed in seeds))
    return replace(made, **{"seeds": seeds, "modes": (replace(made.modes[0], simulation=simulation),), **changes})


def test_seeds_are_seeds_of_one_mode() -> None:
    both = merge(
        {"a": report(1, 2, run_config={"lr": 0.1, "seed": 1}), "b": report(3, run_config={"lr": 0.1, "seed": 3})}
    )
    assert both.labels == ("federated",)
    assert both.seeds == (1, 2, 3)
    (summary,) = summarize(both)
    assert summary.finished == 3
    assert summary.metrics["accuracy"].n == 3
    assert broken(fairness(both)) == ()


@pytest.mark.parametrize(
    ("first", "other", "key"),
    [
        ({"run_config": {"lr": 0.1}}, {"run_config": {"lr": 0.2}}, "lr"),
        ({"settings": {"round-seconds": 1}}, {"settings": {"round-seconds": 2}}, "round-seconds"),
        ({"sites": 4}, {"sites": 9}, "clients"),
        ({"run_config": {"partition": "iid"}}, {"run_config": {"partition": "labels:2"}}, "partition"),
    ],
)
def test_what_differs_is_an_axis(first: dict[str, Any], other: dict[str, Any], key: str) -> None:
    both = merge({"a": report(1, **first), "b": report(1, **other)})
    assert both.labels == ("federated",)
    assert both.sweeps == (key,)
    assert len(summarize(both)) == 2
    assert {check.name for check in broken(fairness(both))} <= {"Test data chose nothing"}


def test_settings_are_no_axis_of_a_mode_without_a_server() -> None:
    both = merge({"a": report(1, mode="local"), "b": report(2, mode="local", settings={"min-clients": 7})})
    assert both.sweeps == ()
    assert both.labels == ("local",)


@pytest.mark.parametrize(
    "other",
    [{}, {"app": "another"}, {"run_config": {"width": 3}}, {"budget": "steps"}, {"network": LAN, "app": "another"}],
)
def test_the_same_run_twice_and_what_cannot_be_compared_stay_apart(other: dict[str, Any]) -> None:
    both = merge({"a": report(1), "b": report(1, **other)})
    assert both.labels == ("federated (a)", "federated (b)")
    assert both.sweeps == ()


@pytest.mark.parametrize(
    ("network", "labels"),
    [(LAN, ("federated (wan,slow=2:4)", "federated (lan)")), (None, ("federated (wan,slow=2:4)", "federated"))],
)
def test_another_network_names_the_mode(network: Network | None, labels: tuple[str, str]) -> None:
    both = merge({"a": report(1, 2), "b": report(1, 2, network=network)})
    assert both.labels == labels
    assert both.sweeps == ()
    assert [check.status for check in fairness(both) if check.name == "Network"] == ["differs"]


def test_a_simulation_is_no_seed_of_a_federation_and_says_so() -> None:
    both = merge({"a": report(1), "b": report(2, simulation=True)})
    assert both.labels == ("federated", "federated (simulation)")
    assert both.simulations == ("federated (simulation)",)
    assert any("federated (simulation)" in sentence for sentence in headline(both)[:3])
    alone = merge({"a": report(1, simulation=True), "b": report(2, simulation=True)})
    assert alone.labels == ("federated",)
    assert alone.is_simulation
    assert "simulated" in alone.divided
    assert len(headline(alone)) == len(headline(report(1, 2))) + 1


def test_a_report_without_the_metric_that_the_others_have_weakens_no_claim() -> None:
    made = made_up("federated,local,centralized,ps-async", seeds=3)
    own = report(1, simulation=True, own_evaluation=True)
    curve = [replace(point, metrics={"mine": 0.5}) for point in own.runs[0].curve]
    own = replace(own, runs=(replace(own.runs[0], curve=tuple(curve), sites=(), bootstrap={}),))
    both = merge({"a": made, "b": own})
    assert claims_of(both) == claims_of(made)
    assert not both.own_evaluation
    assert [mode.label for mode in both.modes if mode.own_evaluation] == ["federated (simulation)"]
    assert any("own evaluation" in text and "federated (simulation)" in text for text in headline(both))


def test_the_runs_of_one_command_are_one_report_without_sources() -> None:
    runs = [
        ({"lr": lr, "aggregation": "secure"}, report(seed, simulation=True, run_config={"lr": lr}))
        for lr in (0.1, 0.2)
        for seed in (1, 2)
    ]
    whole = pool(runs)
    assert (whole.labels, whole.seeds, whole.sweeps, whole.sources) == (("federated",), (1, 2), ("lr",), ())
    assert [run.point for run in whole.runs] == [{"lr": 0.1}] * 2 + [{"lr": 0.2}] * 2
    assert ("run config: lr", "0.1, 0.2") in settings_rows(whole)[0]
    plain = pool(
        [({"aggregation": "secure"}, report(1)), ({"aggregation": "plain"}, report(1, mode="federated-plain"))]
    )
    assert (plain.labels, plain.sweeps) == (("federated", "federated-plain"), ())
