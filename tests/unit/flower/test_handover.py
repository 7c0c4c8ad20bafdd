"""In secure mode one reply stands for all clients: who may have it, and who is refused before the first exchange."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, Server, ServerConfig
from flwr.server import strategy as legacy
from flwr.server.client_manager import SimpleClientManager
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, strategy
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, Strategy
from flwr.serverapp.strategy import fedavg as fedavg_module
from flwr.supercore.task_identity import TaskIdentity
from support.raising import raises

from fedcore.errors import AppError
from fedcore.flower import mean_only, sum_only
from fedcore.flower.grid.aggregation_guard import check_server, check_strategy
from fedcore.flower.grid.secure_grid import SecureGrid
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.state import ModelState

NODES = (1, 2, 3)
AVERAGES = ("FedAvg", "FedProx", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad")
EXTRA: dict[str, dict[str, Any]] = {
    "FedProx": {"proximal_mu": 0.1},
    "Krum": {"num_malicious_nodes": 0},
    "MultiKrum": {"num_malicious_nodes": 0, "num_nodes_to_select": 1},
    "Bulyan": {"num_malicious_nodes": 0},
    "QFedAvg": {"client_learning_rate": 0.1},
}


SINGLE, UNDECLARED, LOOP = "secure-aggregation", "undeclared", "undeclared-loop"
"""Checks: a known strategy of single updates; what is not declared to need only the mean; a loop of an app's own."""


@dataclass
class Cohort:
    """An ExchangeBackend that adds 1 to every weight."""

    asked: list[str] = field(default_factory=list)
    connected: tuple[int, ...] = NODES

    def nodes(self) -> list[int]:
        return list(self.connected)

    def report_figures(self, figures: object) -> None:
        del figures

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        self.asked.append(request.message_type)
        state = None
        if request.model is not None and request.message_type == "train":
            state = ModelState.from_arrays({name: array + np.float32(1) for name, array in request.model.items()})
        return [ExchangeReply(node=0, state=state, examples=30, metrics={"epsilon": 1.25})]


@pytest.fixture
def cohort() -> Cohort:
    return Cohort()


@pytest.fixture
def grid(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> SecureGrid:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 0)
    return SecureGrid(cohort, run_id=1)


def start(grid: Grid, chosen: Strategy) -> Any:
    return chosen.start(grid, ArrayRecord({"0": Array(np.zeros(2, np.float32))}), num_rounds=2)


def refused(cohort: Cohort, check: str, run: Callable[[], object]) -> str:
    """What `run` is refused with by this check, before anybody was asked."""
    with raises(AppError, check=check) as refusal:
        run()
    assert cohort.asked == []
    return str(refusal.value)


def line(code_of: Any, word: str) -> int:
    """The line of this file with `word` in the source of a function or class."""
    lines, first = inspect.getsourcelines(code_of)
    return first + next(index for index, text in enumerate(lines) if word in text)


def messages(kind: str = "train") -> list[Message]:
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.ones(2, np.float32))})})
    return [Message(content, node, kind) for node in NODES]


def test_a_strategy_is_refused_while_nobody_is_connected(grid: SecureGrid, cohort: Cohort) -> None:
    cohort.connected = ()
    assert refused(cohort, SINGLE, lambda: start(grid, FedMedian())).startswith("FedMedian ")


# --- Flower's own strategies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AVERAGES)
def test_flowers_averages_get_the_mean(grid: SecureGrid, cohort: Cohort, name: str) -> None:
    result = start(grid, getattr(strategy, name)(weighted_by_key="patients", **EXTRA.get(name, {})))
    assert cohort.asked == ["train", "evaluate"] * 2
    assert grid.result is result
    assert grid.weight_key == "patients"
    assert result.evaluate_metrics_clientapp[2] == MetricRecord({"epsilon": 1.25})


def single(name: str, module: Any) -> Any:
    """One of Flower's strategies that want single replies."""
    if name.startswith(("Differential", "DPFed")):
        options: dict[str, Any] = {"noise_multiplier": 1.0, "clipping_norm": 1.0, "num_sampled_clients": 3}
        if name.startswith("DPFed"):
            options = {"num_sampled_clients": 3} | ({"clip_norm": 1.0} if name == "DPFedAvgFixed" else {})
        elif "Adaptive" in name:
            options = {"noise_multiplier": 1.0, "num_sampled_clients": 3, "clipped_count_stddev": 1.5}
        return getattr(module, name)(module.FedAvg(), **options)
    taken = inspect.signature(getattr(module, name)).parameters
    options = {"num_malicious_clients": 0} if "num_malicious_clients" in taken else EXTRA.get(name, {})
    if name == "QFedAvg" and module is legacy:
        options = {}
    return getattr(module, name)(**options)


@pytest.mark.parametrize("name", sorted(set(strategy.__all__) - {*AVERAGES, "Result", "Strategy"}))
def test_each_other_strategy_of_flower_is_refused_by_name(grid: SecureGrid, cohort: Cohort, name: str) -> None:
    message = refused(cohort, SINGLE, lambda: start(grid, single(name, strategy)))
    assert message.startswith(f"{name} ")
    assert f"(unit/flower/test_handover.py:{line(start, 'chosen.start')})" in message
    assert 'aggregation = "plain"' in message


@pytest.mark.parametrize("name", [*AVERAGES, "FedOpt"])
def test_averages_of_the_legacy_api_are_fine(name: str) -> None:
    made: Any = getattr(legacy, name)
    needs = inspect.signature(made).parameters
    options: dict[str, Any] = {"proximal_mu": 0.1} if name == "FedProx" else {}
    if needs["initial_parameters"].default is inspect.Parameter.empty:
        options["initial_parameters"] = ndarrays_to_parameters([np.zeros(2, np.float32)])
    check_strategy(made(**options))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted(set(legacy.__all__) - {*AVERAGES, "FedOpt", "Strategy"}))
def test_each_other_strategy_of_the_legacy_api_is_refused_by_name(name: str) -> None:
    with raises(AppError, check="secure-aggregation", match=f"^{name} "):
        check_strategy(single(name, legacy))


def test_a_legacy_strategy_that_accepts_no_failures_is_refused() -> None:
    with raises(AppError, check="every-failure", match="accept_failures=False"):
        check_strategy(legacy.FedAvg(accept_failures=False))


def test_a_legacy_server_with_a_loop_of_its_own_is_refused() -> None:
    class Own(Server):
        def fit_round(self, server_round: int, timeout: float | None) -> Any:
            return super().fit_round(server_round, timeout)

    check_server(Server(client_manager=SimpleClientManager()))
    where = rf"Own .*fit_round \(unit/flower/test_handover.py:{line(Own, 'def fit_round')}\)"
    with raises(AppError, check="undeclared", match=where):
        check_server(Own(client_manager=SimpleClientManager()))


def test_legacy_metrics_of_the_apps_own_are_refused_unless_declared() -> None:
    def plain_average(metrics: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        return {"a": sum(m["a"] for _, m in metrics) / len(metrics)}

    chosen = legacy.FedAvg(evaluate_metrics_aggregation_fn=plain_average)
    with raises(
        AppError, check="undeclared", match=r"evaluate_metrics_aggregation_fn \(unit/flower/test_handover\.py:"
    ):
        check_strategy(chosen)
    mean_only(plain_average)
    check_strategy(chosen)


# --- strategies of the app's own ----------------------------------------------------------------------------------


class Robust(FedAvg):
    """What the mean of one reply makes a plain average of."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return super().aggregate_train(server_round, sorted(replies, key=lambda reply: reply.metadata.src_node_id)[1:])


class Logged(FedAvg):
    """Wants the mean, and says so."""

    mean_only = True
    rounds = 0

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        self.rounds += 1
        return super().aggregate_train(server_round, replies)


def test_an_overridden_aggregation_is_refused_by_its_line(grid: SecureGrid, cohort: Cohort) -> None:
    message = refused(cohort, UNDECLARED, lambda: start(grid, Robust()))
    where = f"unit/flower/test_handover.py:{line(Robust, 'def aggregate_train')}"
    assert message.startswith("Robust ")
    assert f"aggregate_train ({where})" in message
    assert "mean_only = True" in message


@pytest.mark.parametrize("name", ["aggregate_evaluate", "_check_and_log_replies"])
def test_all_that_sees_replies_is_looked_at_before_the_training(grid: SecureGrid, cohort: Cohort, name: str) -> None:
    own = type("Own", (FedAvg,), {name: lambda self, *args, **options: None})
    assert f" {name} (unit/flower" in refused(cohort, UNDECLARED, lambda: start(grid, own()))


def test_a_declared_strategy_gets_the_mean(grid: SecureGrid, cohort: Cohort) -> None:
    chosen = Logged()
    start(grid, chosen)
    assert chosen.rounds == 2
    assert cohort.asked == ["train", "evaluate"] * 2


def test_a_declared_method_is_enough(grid: SecureGrid) -> None:
    class Own(FedAvg):
        @mean_only
        def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Any:
            return super().aggregate_evaluate(server_round, replies)

    start(grid, Own())


def test_who_inherits_a_declaration_and_overrides_more_has_to_declare_again(grid: SecureGrid, cohort: Cohort) -> None:
    class Inherits(Logged):
        pass

    class More(Logged):
        def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Any:
            return super().aggregate_evaluate(server_round, replies)

    class Takes(Inherits):
        mean_only = False

    assert refused(cohort, UNDECLARED, lambda: start(grid, More())).startswith("More ")
    assert refused(cohort, UNDECLARED, lambda: start(grid, Takes())).startswith("Takes ")
    start(grid, mean_only(More)())
    start(grid, Inherits())


def test_a_declaration_does_not_make_a_median_a_mean(grid: SecureGrid, cohort: Cohort) -> None:
    class Declared(FedMedian):
        mean_only = True

        def start(self, grid: Grid, *args: Any, **options: Any) -> Any:
            return self.aggregate_train(1, grid.send_and_receive(messages()))

    assert refused(cohort, SINGLE, lambda: start(grid, Declared())).startswith("Declared ")


def test_functions_put_on_a_strategy_or_on_flowers_classes_are_seen(
    grid: SecureGrid, cohort: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    def aggregate(*args: Any, **options: Any) -> Any:
        return None, None

    chosen: Any = Logged()
    chosen.aggregate_evaluate = aggregate
    assert " aggregate_evaluate (" in refused(cohort, UNDECLARED, lambda: start(grid, chosen))
    with monkeypatch.context() as patched:
        patched.setattr(fedavg_module, "aggregate_arrayrecords", aggregate)
        assert " aggregate_arrayrecords (" in refused(cohort, UNDECLARED, lambda: start(grid, FedAvg()))
    monkeypatch.setattr(FedAvg, "aggregate_train", aggregate)
    assert " aggregate_train (" in refused(cohort, UNDECLARED, lambda: start(grid, FedAvg()))


def test_a_start_that_calls_flowers_own_is_fine(grid: SecureGrid, cohort: Cohort) -> None:
    class Own(FedAdam):
        def start(self, *args: Any, **options: Any) -> Any:
            return super().start(*args, **options)

    start(grid, Own())
    assert cohort.asked == ["train", "evaluate"] * 2


# --- metrics ------------------------------------------------------------------------------------------------------


def largest(contents: list[RecordDict], weight_key: str) -> MetricRecord:
    return MetricRecord({"epsilon": max(float(c["metrics"]["epsilon"]) for c in contents)})  # type: ignore[arg-type, index]


@pytest.mark.parametrize("when", ["train", "evaluate"])
def test_metrics_of_the_apps_own_are_refused_by_their_line(grid: SecureGrid, cohort: Cohort, when: str) -> None:
    message = refused(cohort, UNDECLARED, lambda: start(grid, FedAvg(**{f"{when}_metrics_aggr_fn": largest})))  # type: ignore[arg-type]
    assert f" {when}_metrics_aggr_fn (unit/flower/test_handover.py:{line(largest, 'def largest')})" in message
    assert "fedcore.flower.strategies.metrics" in message


def test_a_weighted_mean_of_the_apps_own_gets_the_mean(grid: SecureGrid) -> None:
    def weighted(contents: list[RecordDict], weight_key: str) -> MetricRecord:
        metrics: list[Any] = [content["metrics"] for content in contents]
        examples = [one[weight_key] for one in metrics]
        spent = [n * one["epsilon"] for n, one in zip(examples, metrics, strict=True)]
        return MetricRecord({"epsilon": sum(spent) / sum(examples)})

    result = start(grid, FedAvg(train_metrics_aggr_fn=weighted, evaluate_metrics_aggr_fn=weighted))
    assert result.train_metrics_clientapp[2] == MetricRecord({"epsilon": 1.25})
    assert result.evaluate_metrics_clientapp[2] == MetricRecord({"epsilon": 1.25})


@pytest.mark.parametrize(("when", "asked"), [("train", ["train"]), ("evaluate", ["train", "evaluate"])])
def test_what_looked_like_one_is_refused_with_the_metrics_of_the_first_sum(
    grid: SecureGrid, cohort: Cohort, when: str, asked: list[str]
) -> None:
    def largest_if_any(contents: list[RecordDict], weight_key: str) -> MetricRecord:
        metrics: list[Any] = [content["metrics"] for content in contents]
        return MetricRecord({"epsilon": max(one.get("epsilon", 0.0) for one in metrics)})

    chosen = FedAvg(**{f"{when}_metrics_aggr_fn": largest_if_any})  # type: ignore[arg-type]
    check_strategy(chosen)
    with raises(AppError, check=UNDECLARED, match=f"{when}_metrics_aggr_fn"):
        start(grid, chosen)
    assert cohort.asked == asked


def test_declared_metrics_get_the_mean(grid: SecureGrid) -> None:
    @mean_only
    def doubled(contents: list[RecordDict], weight_key: str, factor: float = 2.0) -> MetricRecord:
        return MetricRecord({"double": factor * next(iter(contents[0].metric_records.values()))["epsilon"]})  # type: ignore[operator]

    @mean_only
    class Object:
        def __call__(self, contents: list[RecordDict], weight_key: str) -> MetricRecord:
            return doubled(contents, weight_key)

        def method(self, contents: list[RecordDict], weight_key: str) -> MetricRecord:
            return doubled(contents, weight_key)

    for function in (doubled, functools.partial(doubled, factor=2.0), Object(), Object().method):
        result = start(grid, FedAvg(evaluate_metrics_aggr_fn=function))
        assert result.evaluate_metrics_clientapp[1] == MetricRecord({"double": 2.5})


def test_only_functions_and_classes_can_be_declared() -> None:
    with pytest.raises(AppError, match=r"mean_only.*FedAvg"):
        mean_only(FedAvg())  # type: ignore[type-var]


# --- loops of the app's own ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["send_and_receive", "push_messages"])
def test_a_loop_of_the_apps_own_is_refused_by_its_line(grid: SecureGrid, cohort: Cohort, way: str) -> None:
    def main(grid: Grid) -> None:
        getattr(grid, way)(messages())

    message = refused(cohort, LOOP, lambda: main(grid))
    assert message.startswith(f"unit/flower/test_handover.py:{line(main, 'getattr(grid')}: ")
    assert ".main " in message


def test_a_declared_loop_gets_the_mean_in_its_helpers_too(grid: SecureGrid) -> None:
    def helper(grid: Grid) -> list[Message]:
        return list(grid.send_and_receive(messages()))

    @mean_only
    def main(grid: Grid) -> list[Message]:
        return helper(grid)

    @mean_only
    class Loop:
        def run(self, grid: Grid) -> list[Message]:
            return helper(grid)

        @classmethod
        def of_class(cls, grid: Grid) -> list[Message]:
            return helper(grid)

    for asked in (main, Loop().run, Loop.of_class):
        assert [reply.content["arrays"]["w"].numpy().tolist() for reply in asked(grid)] == [[2.0, 2.0]]


class Wrapped(Grid):
    """A grid of the app's around ours."""

    def __init__(self, inner: SecureGrid) -> None:
        self.inner = inner

    set_run = run = create_message = push_messages = pull_messages = None  # type: ignore[assignment]

    def get_node_ids(self) -> Iterable[int]:
        return self.inner.get_node_ids()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.inner.send_and_receive(messages, timeout=timeout)


def test_a_grid_around_ours_hides_no_strategy(grid: SecureGrid, cohort: Cohort) -> None:
    assert "Wrapped.send_and_receive " in refused(cohort, LOOP, lambda: start(Wrapped(grid), FedAvg()))
    declared = mean_only(type("Declared", (Wrapped,), {"send_and_receive": mean_only(Wrapped.send_and_receive)}))
    assert refused(cohort, SINGLE, lambda: start(declared(grid), FedMedian())).startswith("FedMedian ")
    start(declared(grid), FedAvg())


def test_a_query_from_a_strategy_is_a_loop_of_its_own(grid: SecureGrid, cohort: Cohort) -> None:
    class Asks(FedAvg):
        def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
            grid.send_and_receive(messages("query"))
            return super().configure_train(server_round, arrays, config, grid)

    assert "Asks.configure_train " in refused(cohort, LOOP, lambda: start(grid, Asks()))


def test_queries_are_sums_and_have_a_declaration_of_their_own(grid: SecureGrid, cohort: Cohort) -> None:
    @mean_only
    def of_means(grid: Grid) -> list[Message]:
        return list(grid.send_and_receive(messages("query.age")))

    assert "@fedcore.sum_only " in refused(cohort, LOOP, lambda: of_means(grid))

    @sum_only
    def of_sums(grid: Grid, kind: str) -> list[Message]:
        return list(grid.send_and_receive(messages(kind)))

    assert "@fedcore.mean_only " in refused(cohort, LOOP, lambda: of_sums(grid, "train"))
    of_sums(grid, "query.age")
    assert cohort.asked == ["query.age"]


def test_flowers_own_secure_aggregation_is_refused_by_name(grid: SecureGrid, cohort: Cohort) -> None:
    def main() -> None:
        chosen = legacy.FedAvg(initial_parameters=ndarrays_to_parameters([np.zeros(2, np.float32)]))
        context = LegacyContext(
            context=Context(1, 0, {}, RecordDict(), {}), config=ServerConfig(num_rounds=1), strategy=chosen
        )
        DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2))(grid, context)

    assert "SecAgg" in refused(cohort, LOOP, main)
