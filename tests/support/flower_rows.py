"""The rows of the table in docs/flower.md: small apps of tests/flower_apps, and what becomes of each of them."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flwr.serverapp import strategy

from fedcore.errors import FedcoreError
from fedcore.flower.app import FlowerApp
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.system.assignments import override

APPS = Path(__file__).parents[1] / "flower_apps"
NODES = 4
MODES = ("plain", "secure")
PLAIN_TOLERANCE, SECURE_TOLERANCE = 1e-5, 2e-4
"""Largest difference of a number, relative above 1: rounding of float32, and of the codec at 32 bits."""
AVERAGES = ("FedAvg", "FedProx", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One app. title: as the table calls it. module, server, client: where its parts are. strategy: for the run config.

    checked: whether the test in real processes runs it. tolerance: of what it draws by chance. settings: of
    `[tool.fedcore]`, over the app's.
    """

    title: str
    module: str
    server: str = "server"
    client: str = "client"
    client_module: str = ""
    strategy: str = "FedAvg"
    checked: bool = False
    tolerance: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> str:
        """What names this row among all."""
        return f"{self.module}.{self.server} {self.client_module or self.module}.{self.client} {self.strategy}"

    def app(self) -> FlowerApp:
        """The app with this row's parts."""
        base, config = FlowerApp.load(APPS), self.config
        return replace(
            base,
            serverapp=f"flower_apps.{config['server']}",
            clientapp=f"flower_apps.{config['client']}",
            run_config={**base.run_config, **config},
            settings=JobSettings.from_mapping({**base.settings.to_mapping(), **self.settings}),
        )

    @property
    def config(self) -> dict[str, str]:
        """What the run config says of it."""
        return {
            "server": f"{self.module}:{self.server}",
            "client": f"{self.client_module or self.module}:{self.client}",
            "strategy": self.strategy,
        }


def _strategies() -> Iterator[Row]:
    """Each of Flower's; those with clipping at the client need its mod there."""
    boosted = {"FedXgbBagging": "bagging", "FedXgbCyclic": "cyclic"}
    clients = {
        "DifferentialPrivacyClientSideFixedClipping": "fixed_clipping",
        "DifferentialPrivacyClientSideAdaptiveClipping": "adaptive_clipping",
    }
    for name in strategy.__all__:
        if name in boosted:
            bagging = name == "FedXgbBagging"
            yield Row(title=f"`{name}`, U8 arrays", module="boosting", server=boosted[name], checked=bagging)
        elif name in clients:
            client = clients[name]
            yield Row(title=f"`{name}`", module="strategies", client_module="mods", client=client, strategy=name)
        elif name not in ("FedAvg", "Result", "Strategy"):
            yield Row(title=f"`{name}`", module="strategies", client_module="quickstart", strategy=name)


def _own() -> Iterator[Row]:
    """Strategies and aggregations of the app's own."""
    for name, title in {
        "Robust": "FedAvg with a robust `aggregate_train`",
        "OwnStart": "FedMedian with a `start` of its own",
        "Logged": "FedAvg that counts rounds in `aggregate_train`",
        "DeclaredLogged": "FedAvg that counts rounds, with `mean_only = True`",
        "weighted-loss": "own `evaluate_metrics_aggr_fn`, a weighted mean",
        "declared-loss": "own weighted mean of metrics with `@mean_only`",
    }.items():
        checked = name == "Robust"
        yield Row(title=title, module="own_strategies", client_module="quickstart", strategy=name, checked=checked)
    for name, title in {
        "HalvingAvg": 'FedAvg that halves `config["lr"]`, which the run config has too, each round',
        "HalvingAdagrad": "FedAdagrad that does so too",
    }.items():
        yield Row(title=title, module="schedules", strategy=name)
    yield Row(title="epsilon of each client's accountant, own maximum", module="epsilon")
    parts = {"server": "counting_server", "client": "counting_client"}
    yield Row(title="epsilon, `maximum` over a grid", module="epsilon", **parts)


def _loops() -> Iterator[Row]:
    """Everything without a strategy."""
    for server, title in {
        "server": "own loop, `send_and_receive`",
        "declared": "own loop, `send_and_receive`, with `@mean_only`",
        "pushing": "own loop, `push_messages` and `pull_messages`",
        "pushing_declared": "own loop, `push_messages`, with `@mean_only`",
    }.items():
        checked = server == "pushing_declared"
        yield Row(title=title, module="loops", server=server, client_module="quickstart", checked=checked)
    for server, title in {
        "two_models": "two ArrayRecords, and records of other kinds",
        "vertical": "vertical: other content for each node, state in the context",
    }.items():
        checked = server == "vertical"
        yield Row(title=title, module="several_records", server=server, client=f"{server}_client", checked=checked)
    for server, title in {
        "histogram": "`@app.query`, histogram",
        "histogram_declared": "`@app.query`, histogram, with `@sum_only`",
        "survival_of_patients": "Kaplan-Meier from the patients' rows",
        "survival_declared": "Kaplan-Meier from counts, `@sum_only`",
    }.items():
        yield Row(title=title, module="analytics", server=server, checked=server == "histogram_declared")


def _trouble() -> Iterator[Row]:
    """What goes wrong at one client, one model for several starts, and queries that nobody declares."""
    yield Row(title="one client's app raises", module="trouble", client="raising", checked=True)
    yield Row(
        title="one client is later than `start(timeout=3)`, with `train-seconds = 5`",
        module="trouble",
        server="hurried",
        client="slow",
        settings={"train-seconds": 5},
    )
    yield Row(title="three times `start`, from one model", module="trouble", server="again", client="steady")
    for server, title in {
        "histograms": "`@app.query`, a function that adds histograms up",
        "statistics": "`@app.query`, a function that gives means and deviations from sums",
        "maxima": "`@app.query`, a function that gives the largest of the replies",
    }.items():
        yield Row(title=title, module="partial_results", server=server)


def _dtypes() -> Iterator[Row]:
    """Models whose tensors are not all float32."""
    counters = "integer and bool tensors that all clients count alike"
    yield Row(title=counters, module="dtypes", server="integers", client="counting")
    yield Row(title="float16 tensors", module="dtypes", server="halves", client="half", tolerance=2.0**-10)


def _mods() -> Iterator[Row]:
    for client, title in {
        "fixed_clipping": "`fixedclipping_mod`",
        "adaptive_clipping": "`adaptiveclipping_mod`",
        "local_dp": "`LocalDpMod`",
        "sizes": "`message_size_mod`, `arrays_size_mod`",
        "own": "a mod of the app's own",
    }.items():
        yield Row(title=title, module="mods", client=client)


def _legacy() -> Iterator[Row]:
    """Apps of the API before messages."""
    for name, title in {
        "FedAvg": "legacy: `client_fn`, `server_fn`, `NumPyClient`",
        "weighted-average": "legacy, with Flower's template `weighted_average`",
        "declared-average": "legacy, own `weighted_average` with `@mean_only`",
    }.items():
        yield Row(title=title, module="legacy", strategy=name, checked=name == "FedAvg")
    for name in (*AVERAGES[1:], "FedMedian", "FedTrimmedAvg", "Krum", "QFedAvg", "FaultTolerantFedAvg"):
        yield Row(title=f"legacy `{name}`", module="legacy", strategy=name)
    yield Row(
        title="legacy, `SecAggPlusWorkflow` and `secaggplus_mod`",
        module="legacy",
        server="secagg_server",
        client="secagg_client",
        tolerance=1e-3,
    )


ROWS = (
    Row(title="Message API, FedAvg", module="quickstart", checked=True),
    Row(title="half of the nodes evaluate", module="quickstart", server="fraction"),
    *_strategies(),
    *_own(),
    *_loops(),
    *_trouble(),
    *_dtypes(),
    *_mods(),
    *_legacy(),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an app reported, or the error that it ended with; refused: by an error of fedcore's, which says why."""

    found: Mapping[str, Any] | None = None
    error: str = ""
    refused: bool = False

    def to_json(self) -> dict[str, Any]:
        """For the file of kept results."""
        if self.found is not None:
            return {"found": dict(self.found)}
        return {"refused" if self.refused else "error": self.error}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Outcome:
        """The inverse."""
        error = values.get("refused") or values.get("error", "")
        return cls(found=values.get("found"), error=error, refused="refused" in values)


def last_result(output: str) -> dict[str, Any] | None:
    """What the app reported last in what it printed."""
    lines = re.findall(r"^.*?RESULT (\{.*\})\s*$", output, re.MULTILINE)
    found: dict[str, Any] | None = json.loads(lines[-1]) if lines else None
    return found


def simulated(row: Row, aggregation: str) -> Outcome:
    """The app under fedcore's simulation."""
    app = row.app()
    settings = JobSettings.from_mapping({**app.settings.to_mapping(), "aggregation": aggregation})
    simulation = Simulation(
        app=app,
        clients=NODES,
        run_config=override(app.run_config, {}, "test"),
        settings=settings,
    )
    printed = io.StringIO()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(printed):
            simulation.run()
    except FedcoreError as error:
        return Outcome(error=str(error), refused=True)
    except Exception as error:
        # Whatever an app may end with belongs into the table.
        return Outcome(error=f"{type(error).__name__}: {error}")
    found = last_result(printed.getvalue())
    return Outcome(found=found) if found is not None else Outcome(error="ended without a result")


def verdict(row: Row, mode: str, outcome: Outcome, flower: Outcome) -> str:
    """The cell of a table: "same", "refused", or what is wrong."""
    if outcome.found is None:
        return "refused" if outcome.refused else f"not: {outcome.error}"
    if flower.found is None:
        return f"not: Flower's own runtime fails: {flower.error}"
    off = difference(outcome.found, flower.found)
    allowed = max(row.tolerance, SECURE_TOLERANCE if mode == "secure" else PLAIN_TOLERANCE)
    return "same" if off <= allowed else f"not: differs by {off:.2g}"


def difference(ours: Any, theirs: Any) -> float:
    """Of two reports, the largest of a number, relative above 1; inf where they have other shapes."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        if set(ours) != set(theirs):
            return math.inf
        return max((difference(ours[name], theirs[name]) for name in ours), default=0.0)
    if isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            return math.inf
        return max((difference(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)
    if isinstance(ours, int | float) and isinstance(theirs, int | float):
        return abs(ours - theirs) / max(1.0, abs(theirs))
    return 0.0 if ours == theirs else math.inf
