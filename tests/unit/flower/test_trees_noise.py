"""Boosted trees with noise for each row: what one row changes, how much noise there is, and what it costs."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.boosting import made_table
from support.raising import raises

from fedcore import LocalJob, trees_app, trees_server
from fedcore.codec.privacy import Accountant
from fedcore.codec.privacy.query_noise import QueryNoise
from fedcore.data import Split
from fedcore.errors import AppError, BudgetSpent, ConfigurationError, RunFailed
from fedcore.federation import Policy
from fedcore.flower.memory_app import load_app
from fedcore.flower.records import arrays_from_state
from fedcore.flower.trees.budget import LevelPlan, RowBudget
from fedcore.flower.trees.client import TreesApp
from fedcore.flower.trees.question import Question, TreeQuestion
from fedcore.flower.trees.schedule import BoostingSchedule
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.state import ModelState
from fedcore.trees import BoostingSettings, Cuts, Ensemble, RegressionTree, Scale
from fedcore.trees.cuts import LAST_CUT
from fedcore.trees.histograms import gradients
from fedcore.trees.noise import clipped, hessian_bits, noised_scale, row_norm
from fedcore.trees.settings import LOGISTIC, SOFTPROB, SQUARED_ERROR

SITES = 3
X, Y = made_table(5, objective=LOGISTIC, rows=900)
BOUNDS = {**{f"x{i}": (-5.0, 5.0) for i in range(X.shape[1])}, "y": (0.0, 1.0)}
CONFIG = {"num-server-rounds": 2, "max-depth": 2, "bins": 4}
DELTA = 1e-6
SCALE = noised_scale(LOGISTIC, 1.0)


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 0)


def client(broken: bool = False, y: NDArray[np.float32] = Y) -> TreesApp:
    def data(job: LocalJob) -> tuple[Split, Split]:
        site = int(job.node["partition-id"])
        if broken:
            raise AppError("the file of this site is gone")
        rows = np.arange(len(X)) % SITES == site
        part = Split(x=X[rows], y=y[rows])
        return part, part

    return trees_app(data=data, bounds=lambda config: BOUNDS)


def trained(app: TreesApp, mode: str = "secure", policy: Policy | None = None, **config: Any) -> Ensemble:
    run_config = {**CONFIG, **{key.replace("_", "-"): value for key, value in config.items()}}
    with load_app((app, trees_server(app)), run_config) as found:
        state = (
            Simulation(
                app=found.app, clients=SITES, run_config=found.app.run_config, policy=policy,
                settings=JobSettings.from_mapping({"aggregation": mode}),
            )
            .run()
            .state
        )  # fmt: skip
    assert state is not None
    return Ensemble.from_arrays({name: state[name] for name in state})


@given(
    objective=st.sampled_from([LOGISTIC, SOFTPROB, SQUARED_ERROR]),
    margins=st.lists(st.floats(-90, 90, width=32) | st.sampled_from([math.nan, math.inf]), min_size=5, max_size=5),
    target=st.integers(0, 4),
)
def test_no_row_changes_a_cell_by_more_than_its_norm(objective: str, margins: list[float], target: int) -> None:
    """Of all classes together, whatever the margins are that a server makes up."""
    settings = BoostingSettings(objective=objective, num_class=5 if objective == SOFTPROB else 0)
    y = np.array([target % 2 if objective == LOGISTIC else target], np.float32)
    row = np.array(margins[: settings.groups], np.float32).reshape((1, -1) if settings.groups > 1 else (1,))
    with np.errstate(all="ignore"):
        g, h = clipped(*gradients(objective, row, y), noised_scale(objective, 4.0))
    assert math.hypot(*g.ravel().tolist(), *h.ravel().tolist()) <= row_norm(settings)


def test_the_norm_is_no_larger_than_it_has_to_be() -> None:
    g, h = clipped(*gradients(LOGISTIC, np.float32([30]), np.float32([0])), noised_scale(LOGISTIC, 1.0))
    assert math.hypot(int(g[0]), int(h[0])) > 0.99 * row_norm(BoostingSettings())


def budget(epsilon: float = 0.0, multiplier: float = 0.0, shares: int = 1, trees: int = 20) -> RowBudget:
    schedule = BoostingSchedule(
        rounds=trees, min_nodes=1, test_every=0, early_stopping=0, bins=8, epsilon=epsilon, delta=DELTA,
        multiplier=multiplier,
    )  # fmt: skip
    level = LevelPlan.of(13, 8, 1, 4094, root=True)
    return RowBudget.of(schedule, BoostingSettings(), 13, shares, [(level, trees)])


@pytest.mark.parametrize("multiplier", [2.0, 5.0])
def test_epsilon_is_the_one_of_dp_accounting(multiplier: float) -> None:
    """Twenty Gaussian mechanisms whose noise has so many deviations of what one row changes."""
    spent = budget(multiplier=multiplier)
    for _ in range(20):
        spent.spend(spent.noise({0: 14}, 13 * 16 + 2))
    theirs = get_epsilon_gaussian(multiplier / math.sqrt(20), DELTA)
    assert theirs <= spent.epsilon_spent == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_the_noise_is_the_least_that_keeps_epsilon(epsilon: float) -> None:
    kept = budget(epsilon=epsilon)
    theirs = get_epsilon_gaussian(kept.multiplier / math.sqrt(20), DELTA)
    assert epsilon >= theirs == pytest.approx(epsilon, rel=0.02)
    for _ in range(20):
        kept.spend(kept.noise({0: 14}, 4094))
    with raises(BudgetSpent):
        kept.spend(kept.noise({0: 14}, 4094))


@pytest.mark.parametrize("shares", [1, 4])
def test_shares_add_up_to_the_noise_that_is_asked_for(shares: int) -> None:
    asked = budget(multiplier=3.0, shares=shares)
    noise = asked.noise({0: 14}, 4000)
    drawn = np.sum([noise.alone(os.urandom)["trees/sums"] for _ in range(shares)], axis=0)
    assert np.var(drawn) == pytest.approx(asked.deviation**2, rel=0.15)  # seven deviations of an estimate from 4,000
    assert asked.deviation == pytest.approx(3.0 * math.sqrt(14) * row_norm(BoostingSettings()))
    assert abs(np.mean(drawn)) < 7 * asked.deviation / math.sqrt(4000)


def test_features_that_take_turns_cost_as_much_as_all_at_once() -> None:
    spent = budget(multiplier=3.0)
    at_once, parts = spent.noise({0: 12}, 4000), [spent.noise({0: 4}, 1300) for _ in range(3)]
    whole = Accountant((at_once.release,)).epsilon(DELTA)
    assert Accountant(part.release for part in parts).epsilon(DELTA) == pytest.approx(whole, rel=0.02)


def test_a_run_with_little_noise_grows_a_tree_of_the_pooled_rows() -> None:
    model = trained(client(), epsilon=30.0, num_server_rounds=3, learning_rate=0.5, min_child_weight=5.0)
    assert model.rounds == 3
    assert np.mean((model.margins(X) > 0) == (Y > 0)) > 0.65
    assert model.base_score == pytest.approx(Y.mean(), abs=0.05)


class Reader:
    """Asks one question, and only adds up."""

    sum_only = True

    def __init__(self, noise: QueryNoise) -> None:
        self.noise, self.sums = noise, np.zeros(0)

    def ask(self, grid: Grid, context: Context) -> None:
        content = asked(self.noise).content
        messages = [Message(content, node, "query.tree_sums") for node in grid.get_node_ids()]
        (reply,) = grid.send_and_receive(messages)
        self.sums = np.asarray(reply.content.metric_records["trees"]["sums"])
        assert reply.content.metric_records["federation"]["clients"] == 0


def read(app: TreesApp, noise: QueryNoise) -> Reader:
    reader, server = Reader(noise), ServerApp()
    server.main()(reader.ask)
    with load_app((app, server), CONFIG) as found:
        Simulation(app=found.app, clients=SITES, run_config=CONFIG, settings=JobSettings()).run()
    return reader


def test_noise_is_shared_out_among_those_alone_that_a_sum_is_sure_to_have() -> None:
    with pytest.raises(RunFailed, match="noise-shares"):
        read(client(), budget(multiplier=10.0, shares=SITES).noise({0: 6}, 42))


def test_a_site_whose_app_fails_adds_its_noise_all_the_same() -> None:
    """So the sum never holds fewer shares than was stated."""
    reader = read(client(broken=True), budget(multiplier=10.0).noise({0: 6}, 42))
    expected = SITES * reader.noise.release.variance
    assert 0.4 < np.mean(reader.sums**2) / expected < 2.0  # 42 draws: beyond that once in some thousands


def test_owners_bound_what_is_told_of_a_row() -> None:
    own = Policy.own(SITES, allow_plain=False)
    run = {"epsilon": 4.0, "num_server_rounds": 1}
    assert trained(client(), policy=replace(own, max_row_epsilon=4.1, delta=DELTA), **run).rounds == 1
    site_alone = {"max_epsilon": 8.0, "delta": DELTA}
    for check, change, config in (
        ("privacy-budget", {"max_row_epsilon": 3.0, "delta": DELTA}, run),
        ("too-little-noise", {"max_row_epsilon": 0.5, "delta": DELTA}, run),
        ("privacy-required", site_alone, run),
        ("privacy-required", {"max_row_epsilon": 4.0}, {"num_server_rounds": 1}),
    ):
        with pytest.raises(RunFailed, match=check):
            trained(client(), policy=replace(own, **change), **config)
    both = replace(own, **site_alone, max_row_epsilon=4.1)
    assert trained(client(), policy=both, **run).rounds == 1


@pytest.mark.parametrize(
    ("config", "mode", "check"),
    [
        ({"epsilon": 1.0}, "plain", "noise-needs-masks"),
        ({"epsilon": 1.0, "subsample": 0.5}, "secure", "subsample"),
        ({"epsilon": 1.0, "early_stopping_rounds": 2}, "secure", "early-stopping-rounds"),
        ({"epsilon": -1.0}, "secure", "epsilon"),
        ({"epsilon": 1.0, "delta": 0.0}, "secure", "delta"),
        ({"epsilon": 1.0, "max_depth": 12, "bins": 64}, "secure", "no-room"),
        ({"epsilon": 1e-9}, "secure", "epsilon"),
        ({"noise_multiplier": 0.01}, "secure", "noise-multiplier"),
        ({"epsilon": 1.0, "noise_multiplier": 0.5}, "secure", "noise-multiplier"),
    ],
)
def test_a_promise_that_cannot_be_kept_ends_the_run(config: dict[str, Any], mode: str, check: str) -> None:
    with raises(ConfigurationError, check=check):
        trained(client(), mode, **config)


def asked(noise: QueryNoise, scale: Scale = SCALE, **settings: Any) -> Message:
    """The root of all features of four bins, with this noise."""
    cuts = Cuts.of([[-1.0, 0.0, 1.0, LAST_CUT]] * X.shape[1])
    model = Ensemble(BoostingSettings(max_depth=2, **settings), cuts, tuple(BOUNDS)[:-1], 0.5, 1)
    one = TreeQuestion(nodes=np.array([0]), features=np.arange(5), tree=RegressionTree.empty(model.settings.nodes, 0))
    config = Question(trees={0: one}, scale=scale, start=0, stop=42, noise=noise).as_config(model)
    arrays = arrays_from_state(ModelState.from_arrays(model.to_arrays()))
    return Message(RecordDict({"arrays": arrays, "config": config}), 0, "query.tree_sums")


def reply_to(message: Message, y: NDArray[np.float32] = Y) -> Any:
    node = {"partition-id": 0}
    context = Context(run_id=1, node_id=0, node_config=node, state=RecordDict(), run_config=dict(CONFIG))
    return client(y=y)(message, context).content.metric_records


def test_a_site_refuses_noise_that_is_for_less_than_it_answers() -> None:
    fair = budget(multiplier=1.0).noise({0: 6}, 42)
    reply = reply_to(asked(fair))
    assert len(reply["trees"]["sums"]) == 42
    assert dict(reply["federation"]) == {"clients": 1, "rows": 0}
    too_small = replace(fair, release=replace(fair.release, scale=fair.release.scale - 1))
    shorter = replace(fair, release=replace(fair.release, dimension=41))
    finer = Scale(gradient_bits=9, hessian_bits=11)
    for message in (asked(too_small), asked(shorter), asked(fair, finer), asked(fair, subsample=0.5)):
        with raises(AppError, check="trees-query"):
            reply_to(message)


def test_a_row_that_does_not_fit_is_hidden_by_the_noise() -> None:
    """An error would tell that there is one."""
    fair, bad = budget(multiplier=1.0).noise({0: 6}, 42), Y.copy()
    bad[[0, 3, 6]] = 0.5, np.nan, 7.0
    rows = int(reply_to(asked(fair))["trees"]["sums"][1]), int(reply_to(asked(fair), bad)["trees"]["sums"][1])
    assert rows[0] - rows[1] == 3 * 2 ** hessian_bits(LOGISTIC) / 4
