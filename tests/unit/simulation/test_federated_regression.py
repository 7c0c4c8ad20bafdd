"""A regression over a simulated federation: through real codec and secure sums that of all rows together."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.supercore.task_identity import TaskIdentity
from support.later import Later
from support.raising import raises

from fedcore.data.regression.newton import Regression
from fedcore.data.regression.resolve import regression_query
from fedcore.data.survival.curves import Survival
from fedcore.data.survival.resolve import survival_query
from fedcore.errors import ConfigurationError, FedcoreError, RoundFailed
from fedcore.flower.app import FlowerApp
from fedcore.flower.regression import step_answer
from fedcore.flower.serverside import run_question
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.wire.events import RunEvent

APP = Path(__file__).parents[2] / "apps" / "columns"
sys.path.insert(0, str(APP))
from columns_app.table import table  # noqa: E402

sm = Later("statsmodels.api")

ROWS = 200
BOUNDS = {"age": (0.0, 100.0), "dose": (-1.0, 1.0), "ward": (0.0, 4.0)}
FORMULAS = {"linear": "dose ~ age + C(ward, [0, 1, 2, 3])", "poisson": "ward ~ age + dose"}


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 0)


def ask(
    formula: str, family: str, mode: str = "secure", clients: int = 3, dropouts: Any = None
) -> tuple[Regression, int]:
    """The regression, and how many exchanges it took."""
    app = FlowerApp.load(APP)
    settings = JobSettings.from_mapping({"aggregation": mode})
    events: list[RunEvent] = []
    config = {**app.run_config, "rows": ROWS}
    query = regression_query(formula, family=family, bounds=BOUNDS)
    simulation = Simulation(
        app=app, clients=clients, run_config=config, settings=settings, dropouts=dropouts, emit=events.append
    )
    with simulation.open() as backend:
        found = cast(
            Regression, run_question(query, backend=backend, run="simulation", aggregation=settings.aggregation)
        )
    return found, sum(event.kind == "exchange-done" for event in events)


def pooled(family: str) -> Any:
    rows = {name: np.concatenate([table(site, ROWS)[name] for site in range(3)]) for name in BOUNDS}
    used = ~np.isnan(rows["age"])
    age, dose, ward = (rows[name][used] for name in ("age", "dose", "ward"))
    if family == "linear":
        return sm.OLS(dose, np.stack([np.ones(len(age)), age, *(ward == level for level in (1, 2, 3))], axis=1)).fit()
    design = np.stack([np.ones(len(age)), age, dose], axis=1)
    return sm.GLM(ward, design, family=sm.families.Poisson()).fit(tol=1e-13)


@pytest.mark.parametrize("family", FORMULAS)
@pytest.mark.parametrize("mode", ["secure", "plain"])
def test_is_that_of_all_rows_together(family: str, mode: str) -> None:
    found, exchanges = ask(FORMULAS[family], family, mode)
    model = pooled(family)
    assert found.coefficients == pytest.approx(model.params.tolist(), rel=1e-6, abs=1e-9)
    assert found.errors == pytest.approx(model.bse.tolist(), rel=1e-6)
    assert (found.rows, found.clients, found.nodes) == (int(model.nobs), 3, 3)
    assert found.rows + found.missing == 3 * ROWS + 3
    assert exchanges == found.queries <= 7


class Leaving:
    """Some clients leave one exchange, before the others have their updates."""

    def __init__(self, exchange: int, clients: int) -> None:
        self._until, self._clients = exchange, clients

    def drops_at_step(self, cohort: Sequence[int]) -> dict[int, str]:
        self._until -= 1
        return dict.fromkeys(cohort[-self._clients :], "input") if not self._until else {}

    def drops(self, cohort: Sequence[int]) -> Collection[int]:
        return self.drops_at_step(cohort)


@pytest.mark.parametrize("exchange", [1, 2, 3])
@pytest.mark.parametrize(("mode", "clients", "leaving"), [("secure", 12, 3), ("plain", 3, 1)])
def test_clients_that_leave_between_steps_end_it(exchange: int, mode: str, clients: int, leaving: int) -> None:
    with raises(RoundFailed, check="other-clients"):
        ask(FORMULAS["linear"], "linear", mode, clients, Leaving(exchange, leaving))


def test_a_client_that_comes_back_is_in_the_same_step_again() -> None:
    """The owners answer no query without the one of them that was in the query before."""
    found, _ = ask(FORMULAS["linear"], "linear", "secure", 6, Leaving(2, 1))
    assert (found.clients, found.queries) == (6, 3)


@pytest.mark.parametrize("mode", ["secure", "plain"])
def test_survival_curves_are_those_of_all_rows_together(mode: str) -> None:
    settings = JobSettings.from_mapping({"aggregation": mode})
    app = FlowerApp.load(APP)
    query = survival_query("age ward=2", by="C(ward, [1, 2, 3])", bounds=BOUNDS, bins=3000)
    simulation = Simulation(app=app, clients=3, run_config={**app.run_config, "rows": ROWS}, settings=settings)
    with simulation.open() as backend:
        found = run_question(query, backend=backend, run="simulation", aggregation=settings.aggregation)
    assert isinstance(found, Survival)
    rows = [table(site, ROWS) for site in range(3)]
    counts = [sum(np.count_nonzero((part["ward"] == ward) & (part["age"] >= 0)) for part in rows) for ward in (1, 2, 3)]
    assert [curve.rows for curve in found.curves] == counts
    assert [curve.events for curve in found.curves][::2] == [0, 0]
    assert (found.clients, found.queries) == (3, 5)


def test_the_largest_question_has_room_in_a_query() -> None:
    levels = ", ".join(map(str, range(61)))
    with raises(ConfigurationError, check="empty-level"):  # the columns are read, and the wards have four levels
        ask(f"dose ~ C(ward, [{levels}])", "linear")


def test_a_column_that_nobody_has() -> None:
    with raises(FedcoreError, check="no-such-column", match="'height'"):
        ask("dose ~ C(height, [0, 1])", "linear")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"query": 3}', json.dumps({"extra": 1})])
def test_a_message_without_a_step_is_refused(text: str) -> None:
    with raises(ConfigurationError):
        step_answer({"statistics-regression": text}, table(0, ROWS))
