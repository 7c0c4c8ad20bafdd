"""From the record of a federated run to its result, without processes."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.events import event
from support.tiny import TINY

from fedcore.comparison.federation import (
    FederatedOutcome,
    TrainedExamples,
    evaluations_by_round,
    examples_by_round,
    progress_since,
)
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.modes.federated import Description, result_of, rounds_tested
from fedcore.comparison.modes.federated_async import staleness_of
from fedcore.comparison.results import Staleness
from fedcore.comparison.run import PlannedRun
from fedcore.comparison.workers.schedule import Schedule
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.progress_protocol import EvaluationProgress, TrainingProgress, print_progress
from fedcore.monitoring.run_record import RunRecord
from fedcore.simulation.devices.network import Cost, Network
from fedcore.system.json_lines import LINE_CHARACTERS
from fedcore.wire.events import PrivacyTerms

BOTH = frozenset({"client-1", "client-2"})
NETWORK = Network(name="", bandwidth=8.0, latency=0.0, server=16.0)
SCHEDULE = Schedule(counts=(4, 6), batch_size=2, epochs=2)


TOLD = {"client-1": {1: 8, 2: 8}, "client-2": {1: 12, 2: 12}}
"""Two epochs of 4 and 6 examples, in both rounds."""


def followed(
    *, survivors: tuple[str, ...] = ("client-1", "client-2"), examples: TrainedExamples = TOLD, **started: Any
) -> FederatedOutcome:
    """Two rounds; in the second one `survivors` are left, and nobody has to fetch the model."""
    record = RunRecord()
    record.add(event("started", **{"aggregation": "plain", **started}), 0.0)
    for number, left in ((1, tuple(sorted(BOTH))), (2, survivors)):
        base = {"server_round": number, "survivors": list(left), "seconds": 2.0}
        sent = dict.fromkeys(sorted(BOTH), 10 * number)
        train = {**base, "message_type": "train", "examples": 7, "metrics": {"train_loss": 3.0}, "bytes_up": sent}
        down = dict.fromkeys(sorted(BOTH), 110 if number == 1 else 10)
        record.add(event("exchange-done", **train, bytes_down=down), 1)
        found = {"eval_acc": 0.5 * number, "eval_loss": 1.0 / number}
        record.add(event("exchange-done", **base, message_type="evaluate", examples=5, metrics=found), 2)
    record.add(event("ended"), 3.0)
    fetched = (BOTH, BOTH, frozenset(), BOTH)
    return FederatedOutcome(record=record, losses=(), models=("a", "b", "b", "c"), fetched=fetched, examples=examples)


def run(tmp_path: Path, **changes: Any) -> PlannedRun:
    (mode,) = parse_modes("federated-plain")
    values = {"app": FlowerApp.load(TINY), "chosen": mode, "config": {}, "settings": {}, "sites": 2, "seed": 1}
    return PlannedRun(
        **{**values, "folder": tmp_path, "network": NETWORK, "cost": Cost(step=1.0, example=0.0), **changes}
    )


def test_the_model_counts_for_every_training_exchange(tmp_path: Path) -> None:
    about = Description(parameters=3, model_bytes=100, schedule=SCHEDULE)
    result = result_of(run(tmp_path), followed(), about)
    assert result.bytes_down == {"client-1": 110 + 110, "client-2": 110 + 110}
    assert result.bytes_up == {"client-1": 30, "client-2": 30}
    assert [point.bytes_up for point in result.curve] == [10, 30]
    assert (result.initial_sha256, result.model_sha256) == ("a", "")
    found = [(point.metrics["eval_acc"], point.metrics["eval_loss"], point.seconds) for point in result.curve]
    assert found == [(0.5, 1.0, 2.0), (1.0, 0.5, 4.0)]


def test_staleness_of_a_buffered_run_is_in_models_and_in_updates() -> None:
    ages = [
        {"client-1": 0, "client-2": 0},
        {"client-1": 0, "client-3": 1, "client-4": 1},
        {"client-2": 1, "client-5": 2},
    ]
    exchanges = [
        event("exchange-done", server_round=number, message_type=kind, survivors=list(of), staleness=of)
        for number, of in enumerate(ages, start=1)
        for kind in ("train", "evaluate")
    ]
    found = staleness_of(exchanges, 10)
    assert found == Staleness(clocks={0: 3, 1: 3, 2: 1}, updates={0: 3, 2: 2, 3: 1, 5: 1}, bound=10)
    assert staleness_of([], 10) is None


def test_a_site_is_counted_in_each_sum_of_a_training(tmp_path: Path) -> None:
    about = Description(parameters=3, model_bytes=100, schedule=None)
    assert result_of(run(tmp_path), followed(survivors=("client-1",)), about).sums == {"client-1": 2, "client-2": 1}


def test_figures_of_the_server_app_are_points_of_the_curve(tmp_path: Path) -> None:
    """Under their own names; the clients' of the same name get another one, and are as the strategy made them."""
    results = {
        "train": {"1": {"train_loss": 3.0}},
        "evaluate": {"1": {"eval_acc": 0.6, "auc": 0.7}, "2": {"eval_acc": 0.7, "auc": 0.8}},
        "server": {
            "0": {"eval_acc": 0.1, "note": "legacy", "table": [[1]]},
            "2": {"eval_acc": 0.9, "per_class": [1, 0]},
        },
    }
    about = Description(parameters=3, model_bytes=100, schedule=None)
    result = result_of(run(tmp_path), replace(followed(), results=results), about)
    assert [(point.round, point.metrics) for point in result.curve] == [
        (0, {"eval_acc": 0.1}),
        (1, {"clients/eval_acc": 0.6, "auc": 0.7}),
        (2, {"eval_acc": 0.9, "per_class": (1.0, 0.0), "clients/eval_acc": 0.7, "auc": 0.8}),
    ]
    assert result.by_server == ("eval_acc", "per_class")
    alone = result_of(
        run(tmp_path), replace(followed(), results={"server": {}, "evaluate": results["evaluate"]}), about
    )
    assert [point.metrics for point in alone.curve] == [{"eval_acc": 0.6, "auc": 0.7}, {"eval_acc": 0.7, "auc": 0.8}]


def test_samples_and_steps_are_those_of_the_survivors(tmp_path: Path) -> None:
    about = Description(parameters=3, model_bytes=100, schedule=SCHEDULE)
    result = result_of(run(tmp_path), followed(survivors=("client-2",)), about)
    assert [point.samples for point in result.curve] == [20, 20 + 12]
    assert result.steps == {"client-1": 4, "client-2": 2 * 6}
    # 6 steps of a second; 120 and 130 bytes over a byte a second, in the second round over the whole of a site's link.
    assert [point.simulated_seconds for point in result.curve] == pytest.approx([6 + 120, 6 + 120 + 6 + 130])


def test_examples_are_those_that_clients_took_whatever_the_settings_say(tmp_path: Path) -> None:
    """Own training code may go over its data as often as it likes, and then nobody knows its steps."""
    examples = {"client-1": {1: 8, 2: 80}, "client-2": {1: 12, 2: 12}}
    about = Description(parameters=3, model_bytes=100, schedule=SCHEDULE)
    result = result_of(run(tmp_path), followed(examples=examples), about)
    assert [point.samples for point in result.curve] == [20, 20 + 92]
    assert (result.steps, result.simulated_seconds) == ({}, None)
    half = result_of(run(tmp_path), followed(examples={"client-1": TOLD["client-1"]}), about)
    assert [point.samples for point in half.curve] == [None, None]


def test_what_an_app_says_of_itself_is_not_taken_for_its_examples(tmp_path: Path) -> None:
    """It reports 7 of each round, which is a weight."""
    about = Description(parameters=0, model_bytes=0, schedule=None)
    result = result_of(run(tmp_path), followed(examples={}), about)
    assert [point.samples for point in result.curve] == [None, None]
    assert result.steps == {}
    assert result.simulated_seconds is None


def test_privacy_tells_the_budget_and_what_was_spent(tmp_path: Path) -> None:
    about = Description(parameters=3, model_bytes=100, schedule=SCHEDULE)
    terms = {"mechanism": "skellam", "noise_multiplier": 1.0, "clip_norm": 1.0, "metric_bound": 0.0}
    terms |= {"epsilon_budget": 8.0, "delta": 1e-5}
    private = followed(privacy=terms)
    result = result_of(run(tmp_path), private, about)
    assert (result.privacy, result.epsilon_spent) == (PrivacyTerms(**terms), 0.0)
    result = result_of(run(tmp_path), followed(), about)
    assert (result.privacy, result.epsilon_spent) == (None, None)


def test_a_clients_log_says_what_its_app_did_in_this_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "client-1.log"
    long = EvaluationProgress(
        round=2, examples=9, targets=9, loss=math.inf, sums={"auc": tuple(i / 7 for i in range(400))}
    )
    print_progress(TrainingProgress(round=1, examples=999))
    log.write_text(capsys.readouterr().out)
    before = log.stat().st_size
    print_progress(TrainingProgress(round=1, examples=30))
    print_progress(TrainingProgress(round=2, examples=30))
    print_progress(long)
    print_progress(TrainingProgress(round=2, examples=4))
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) < LINE_CHARACTERS
    lines = [f"12:00:00 client-1  app          {line}  [plain: the server can read this]" for line in printed]
    with log.open("a") as file:
        file.write("\n".join(["hello", *lines]) + "\n")
    found = progress_since(log, before)
    assert examples_by_round(found) == {1: 30, 2: 34}
    (test,) = evaluations_by_round(found).values()
    assert (test.round, test.loss, tuple(test.sums["auc"])) == (2, math.inf, long.sums["auc"])


def test_rounds_that_all_sites_evaluated_are_known_by_what_they_told() -> None:
    one, two = (EvaluationProgress(round=number, examples=4, targets=4, loss=1.0) for number in (1, 2))
    whole = replace(followed(), tested={"client-1": {1: one, 2: two}, "client-2": {1: one, 2: two}})
    assert rounds_tested(whole, 2, but={2}) == {1: (one, one)}
    assert rounds_tested(replace(whole, tested={"client-1": {1: one}}), 2, but=()) == {}
