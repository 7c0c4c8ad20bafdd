"""What a federation with stock kits would refuse is refused in a simulation, by the same checks and words."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.flower_rows import APPS as SMALL
from support.flower_rows import ROWS, Row
from support.raising import raises
from support.simulated import Simulate
from support.tiny import TINY
from typer.testing import CliRunner

from fedcore.cli.main import app
from fedcore.errors import CohortBelowMinimum, ConfigurationError, RunFailed
from fedcore.federation import Policy
from fedcore.federation.admission.refusals import SENTENCES
from fedcore.run.quorum import quorum_for
from fedcore.run.requirements import most_corrupt
from fedcore.run.settings import JobSettings
from fedcore.wire.events import RunEvent
from fedcore.wire.uploads import NUMBERED_CHECKS

SIMULATE = ("simulate", "--engine", "inline")

APPS = Path(__file__).parents[2] / "apps"
STEADY, LEGACY, COUNTING = APPS / "steady", APPS / "legacy", APPS / "counting"


def test_the_sentences_with_numbers_are_those_that_may_travel() -> None:
    assert {check for check, sentence in SENTENCES.items() if "{asked}" in sentence} == NUMBERED_CHECKS
    assert all(("{allowed}" in sentence) == ("{asked}" in sentence) for sentence in SENTENCES.values())


def test_an_evaluation_of_too_few_for_a_sum_goes_to_all_and_says_so_once(simulate: Simulate) -> None:
    """Flower's quickstart: half of the nodes evaluate."""
    row = next(row for row in ROWS if row.server == "fraction")
    done = simulate(4, app=SMALL, **row.config)
    assert [len(event["survivors"]) for event in done.of("exchange-done")] == [4, 4, 4, 4]
    (line,) = [event["line"] for event in done.of("warning") if "2 of 4" in event["line"]]
    assert "min-cohort 3" in line
    done = simulate(4, app=STEADY, fraction_evaluate=0.75)
    assert [len(event["survivors"]) for event in done.of("exchange-done")] == [4, 3]
    assert not [event["line"] for event in done.of("warning") if "of 4" in event["line"]]


def test_a_training_of_too_few_is_refused_with_both_numbers_and_the_remedy(simulate: Simulate) -> None:
    """More clients would make another model than the strategy asks for."""
    events: list[RunEvent] = []
    with pytest.raises(CohortBelowMinimum) as refused:
        simulate(4, app=COUNTING, fraction_train=0.5, events=events)
    assert [event.kind for event in events if event.kind != "warning"] == ["started"], "nobody trained before that"
    assert str(refused.value) == (
        "cohort-below-minimum: the strategy asks 2 of 4 clients to train, a sum needs 3 (min-cohort 3 of the "
        "clients' policies): of fewer it would show single updates. Let the strategy ask more: min_train_nodes=3 "
        "(for Flower's own strategies), or fraction_train=0.75 or more"
    )


def test_an_evaluation_that_nobody_is_asked_for_is_not_refused(simulate: Simulate) -> None:
    """Without a bound for metrics private runs evaluate nothing."""
    done = simulate(4, app=STEADY, fraction_evaluate=0.5, size=10, settings={"dp-noise-multiplier": 1.0})
    assert [event["message_type"] for event in done.of("exchange-done")] == ["train"]


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
@pytest.mark.parametrize("app", [TINY, LEGACY], ids=["message-api", "legacy"])
def test_a_strategy_that_waits_for_more_nodes_than_there_are_is_refused(
    simulate: Simulate, app: Path, aggregation: str
) -> None:
    events: list[RunEvent] = []
    wanted = r"\b5\b.*\(min_available_(nodes|clients)=5\).*\b4\b"
    with raises(ConfigurationError, check="too-few-nodes", match=wanted):
        simulate(4, app=app, settings={"aggregation": aggregation}, events=events, min_nodes=5)
    assert not [event for event in events if event.kind == "exchange-done"]


def test_more_may_collude_in_a_large_federation(simulate: Simulate) -> None:
    with pytest.raises(CohortBelowMinimum, match=r"\b3\b.*\b40\b.*\b5\b.*\b2\b"):
        simulate(40, app=COUNTING, fraction_train=0.075)


def test_quorum_and_failures_are_those_of_a_deployment(simulate: Simulate) -> None:
    with raises(ConfigurationError, check="quorum", match=r"\b2\b.*\b3\b"):
        simulate(4, app=STEADY, settings={"quorum": 2})


@pytest.mark.parametrize(
    ("clients", "settings", "refusal"),
    [
        (4, {"key-agreement": "x25519"}, "agreement-not-allowed: .*allow-x25519 = true"),
        (4, {"train-seconds": 90_000.0}, "too-(long|short): "),
    ],
)
def test_settings_that_owners_refuse(simulate: Simulate, clients: int, settings: dict[str, Any], refusal: str) -> None:
    with pytest.raises(RunFailed, match=f": {refusal}"):
        simulate(clients, app=STEADY, size=10, settings=settings)


def any_round(clients: int) -> Policy:
    """Stock, of owners who let a run ask about one model in several rounds."""
    return replace(Policy.default(clients), allow_config={"*": True, "server-round": True}, first_models=("any",))


def test_who_has_no_examples_contributes_nothing(simulate: Simulate) -> None:
    """As a real client does; a sum in which all weights but one were zero would be one client's update."""
    done = simulate(4, app=STEADY, size=10, fewest_examples=0, fraction_evaluate=0.0)
    (event,) = done.of("exchange-done")
    assert (len(event["survivors"]), event["failures"], event["examples"]) == (4, 1, 1 + 2 + 3)
    with pytest.raises(RunFailed):  # the other two are fewer than a sum needs
        simulate(3, app=STEADY, size=10, fewest_examples=0, fraction_evaluate=0.0)


def test_the_same_model_again_and_again_is_refused(simulate: Simulate) -> None:
    """Updates of zeros leave the model as it is, so every round is one more sum of it."""
    with pytest.raises(RunFailed, match=": other-question"):
        simulate(4, app=STEADY, size=10, num_server_rounds=2, fraction_evaluate=0.0)
    with pytest.raises(RunFailed, match=r": too-many-releases: .*\b10\b.*\b10\b.*max-releases"):
        simulate(4, app=STEADY, size=10, num_server_rounds=11, fraction_evaluate=0.0, policy=any_round(4))


def test_an_app_that_starts_again_and_again_begins_each_time_with_another_model(simulate: Simulate) -> None:
    row = Row(title="", module="trouble", server="again", client="steady")
    with pytest.raises(RunFailed, match=r": too-many-releases: .*\b10\b.*max-releases.*policy\.toml"):
        simulate(4, app=SMALL, starts=11, **row.config)
    done = simulate(4, app=SMALL, starts=11, seeds=True, **row.config)
    assert len(done.of("exchange-done")) == 2 * 11


def test_sums_of_one_model_over_other_clients_are_refused(simulate: Simulate) -> None:
    """Of eight clients another half evaluates the same model each time."""
    with pytest.raises(RunFailed, match=": differencing"):
        simulate(8, app=STEADY, size=10, num_server_rounds=9, fraction_evaluate=0.5, policy=any_round(8))


def test_the_command_line_is_the_researchers_own_but_it_is_said(simulate: Simulate) -> None:
    done = simulate(3, lr=0.25)
    (warning,) = done.of("warning")
    assert warning["line"].startswith(
        "a federation with stock policies refuses this run: config-not-allowed: the run sets 'lr' to 0.25, "
        "the installed app says 0.5"
    )
    assert "allow-config" in warning["line"]
    assert not simulate(3, num_server_rounds=2).of("warning"), "owners allow any number of rounds"


def test_plain_is_the_researchers_own_but_it_is_said(simulate: Simulate) -> None:
    done = simulate(3, settings={"aggregation": "plain"})
    assert [event["line"].split(": ")[1] for event in done.of("warning")] == ["plain-not-allowed"]


@pytest.mark.parametrize(
    ("settings", "config", "check"),
    [
        ({}, {"lr": 0.25}, "config-not-allowed lr"),
        ({"w-max": 32}, {}, "config-not-allowed fedcore.w-max"),
        ({"aggregation": "plain"}, {}, "plain-not-allowed"),
    ],
)
def test_a_named_policy_holds_as_it_is(
    simulate: Simulate, settings: dict[str, Any], config: dict[str, Any], check: str
) -> None:
    with pytest.raises(RunFailed, match=f": {check}"):
        simulate(3, policy=Policy.default(3), settings=settings, **config)
    done = simulate(3, policy=Policy.own(3, allow_plain=True), settings=settings, **config)
    assert not done.of("warning")


@pytest.mark.parametrize("mode", ["secure", "plain"])
def test_a_rule_of_a_named_policy_holds_for_messages_too(simulate: Simulate, mode: str) -> None:
    """The app halves its learning rate each round; this owner has it at 0.1 and more."""
    row = next(row for row in ROWS if row.strategy == "HalvingAvg")
    parts, settings = dict.fromkeys(row.config, True), {"aggregation": mode}
    loose = replace(Policy.default(4), allow_plain=True, allow_config=parts)
    strict = replace(loose, allow_config={**parts, "lr": (0.1, 0.125)})
    with pytest.raises(RunFailed, match=r": message-not-allowed.*lr=0\.0625.*\(run: 0\.125\)"):
        simulate(4, app=SMALL, policy=strict, settings=settings, **row.config)
    assert simulate(4, app=SMALL, policy=loose, settings=settings, **row.config).of("exchange-done")


def test_owners_count_epsilon_as_in_a_deployment(simulate: Simulate) -> None:
    noised = {"dp-noise-multiplier": 4.0}
    strict = replace(Policy.own(7), max_epsilon=1e-3)
    with pytest.raises(RunFailed, match=": privacy-required"):
        simulate(7, app=STEADY, size=10, fraction_evaluate=0.0, policy=strict)
    with pytest.raises(RunFailed, match=r": too-little-noise.*0\.001"):
        simulate(7, app=STEADY, size=10, fraction_evaluate=0.0, policy=strict, settings=noised)
    enough_for_two = replace(strict, max_epsilon=3.0)
    with pytest.raises(RunFailed, match=r": privacy-budget.*3\.\d+.*\b3\b"):
        simulate(
            7, app=STEADY, size=10, fraction_evaluate=0.0, num_server_rounds=50, policy=enough_for_two, settings=noised
        )


def test_the_command_takes_a_policy(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("min-cohort = 4\nmin-threshold = 3\n")
    command = [*SIMULATE, str(TINY), "--clients", "5", "--run-config", "min-nodes=5"]
    refused = CliRunner().invoke(app, [*command, "--policy", str(path), "--set", "min-clients=2"])
    assert refused.exit_code == 2
    assert "min-clients is 2, but it must be at least 4" in refused.output
    held = CliRunner().invoke(app, [*command, "--policy", str(path)])
    assert held.exit_code == 5
    assert "every client refused: config-not-allowed min-nodes" in " ".join(held.output.split())
    assert CliRunner().invoke(app, [*command, "--policy", "own"]).exit_code == 0


@pytest.mark.parametrize(("clients", "asked"), [(40, 4), (400, 20), (1_000, 30)])
def test_rounds_of_few_among_many_say_how_many_may_collude(simulate: Simulate, clients: int, asked: int) -> None:
    """With stock policies 5 % of all may collude, and all of them be in a round."""
    few = {"app": COUNTING, "fraction_train": (asked + 0.5) / clients, "num_server_rounds": 1}
    with pytest.raises(CohortBelowMinimum, match=rf"\b{asked} of {clients}\b") as refused:
        simulate(clients, **few)
    remedy = re.search(r"; or reckon with fewer that collude: set max-corrupt to at most ([\d.]+)$", str(refused.value))
    assert remedy
    finished = simulate(clients, settings={"max-corrupt": float(remedy[1])}, **few)
    assert [len(done["survivors"]) for done in finished.of("exchange-done")] == [asked]
    assert any(
        event["line"].startswith("a federation with stock policies refuses this run: corrupt-below-minimum: ")
        for event in finished.of("warning")
    )


def test_the_largest_share_that_may_collude_is_said(simulate: Simulate) -> None:
    """Of 100 clients 67 have to survive, so that 33 may collude: of any two sets of 67 one honest client is in both."""
    assert most_corrupt(100, 10_000, 3) == 0.0033
    assert [quorum_for(JobSettings(max_corrupt=share), 100, 3, 10_000) for share in (0.0033, 0.0034)] == [67, 68]
    assert most_corrupt(4, 40, 3) == 0
    assert most_corrupt(2, 40, 3) is None
    with pytest.raises(CohortBelowMinimum, match=r"fraction_train=0\.13"):
        simulate(40, app=COUNTING, fraction_train=0.06, settings={"quorum": 0})


def test_a_named_policy_reckons_with_those_that_it_names(simulate: Simulate) -> None:
    few: dict[str, Any] = {"app": COUNTING, "fraction_train": 0.1, "num_server_rounds": 1}
    with pytest.raises(CohortBelowMinimum, match=r"fraction_train=0\.13"):
        simulate(40, policy=Policy.own(40), **few)
    with pytest.raises(RunFailed, match=r": corrupt-below-minimum.*\b0\b.*\b2\b"):
        simulate(40, policy=Policy.own(40), settings={"max-corrupt": 0.0}, **few)
    done = simulate(40, policy=Policy.own(40, min_corrupt=0.0), settings={"max-corrupt": 0.0}, **few)
    assert [len(event["survivors"]) for event in done.of("exchange-done")] == [4]


def test_a_sum_of_everybody_need_not_fit_where_a_round_asks_few(simulate: Simulate):
    """Fields of 16 bits hold no sum of 10,000, and one of 100."""
    policy = Policy.own(10_000, min_corrupt=0.0)
    simulate(
        10_000,
        app=COUNTING,
        policy=policy,
        settings={"max-corrupt": 0.0},
        fraction_train=0.0004,
        num_server_rounds=1,
    )


def test_owners_of_a_named_policy_trace_the_first_model(tmp_path: Path) -> None:
    """The app's own is made in this process; another is chosen by the person who simulates, unless a policy rules."""
    own = tmp_path / "own.safetensors"
    command = [*SIMULATE, str(TINY), "--clients", "4"]
    assert CliRunner().invoke(app, [*command, "--policy", "stock", "--out", str(own)]).exit_code == 0
    initial = [*command, "--initial-model", str(own)]
    assert CliRunner().invoke(app, initial).exit_code == 0
    refused = CliRunner().invoke(app, [*initial, "--policy", "stock"])
    assert refused.exit_code == 5
    assert "every client refused: first-model" in " ".join(refused.output.split())
    assert CliRunner().invoke(app, [*initial, "--policy", "own"]).exit_code == 0
