"""Cox regressions by sums over risk sets, and effects of sites: what statsmodels says of all rows in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.later import Later
from support.raising import raises

from fedcore.data.questions import question_from_plain, question_to_plain
from fedcore.data.regression.newton import Regression, fit
from fedcore.data.regression.resolve import regression_query
from fedcore.data.reports.regression_report import RegressionReport
from fedcore.data.survival.cox import fit_cox
from fedcore.data.survival.times import SurvivalTimes, TimeGroups, fine_cells
from fedcore.data.tables import TableColumn, TableSchema
from fedcore.errors import ConfigurationError, RoundFailed

sm = Later("statsmodels.api")
hazards = Later("statsmodels.duration.hazard_regression")

Table = dict[str, np.ndarray]
BOUNDS = {"days": (0.0, 40.0), "age": (0.0, 120.0), "dose": (0.0, 10.0)}
FORMULA = "Surv(days, died) ~ age + dose + C(sex, [0, 1])"
WORD = 2.0**8
"""A sum has at least 8 bits after the point."""


def sites(rows: int = 1500, seed: int = 0, *, whole: bool = True) -> list[Table]:
    """Three sites of unequal size with other ages; times are whole days, or any."""
    chance = np.random.default_rng(seed)
    return [_site(chance, size, at, whole) for at, size in enumerate((rows // 6, rows // 3, rows // 2))]


def _site(chance: np.random.Generator, rows: int, at: int, whole: bool) -> Table:
    age, dose = chance.normal(55 + 5 * at, 10, rows), chance.exponential(2, rows).clip(0, 10)
    sex, ward = chance.integers(0, 2, rows).astype(float), chance.integers(0, 3, rows).astype(float)
    rate = 0.06 * np.exp(0.03 * (age - 60) - 0.4 * sex + 0.1 * dose + 0.3 * at)
    time, censoring = chance.exponential(1 / rate), np.where(chance.random(rows) < 0.3, chance.uniform(5, 40, rows), 40)
    days = np.minimum(time, censoring)
    died = (time <= censoring).astype(float)
    return {
        "days": np.ceil(days) if whole else days,
        "died": died,
        "age": np.where(chance.random(rows) < 0.02, np.nan, age),
        "dose": dose,
        "sex": sex,
        "ward": ward,
        "stays": chance.poisson(np.exp(0.02 * age - 0.2 * at)).astype(float),
        "site": np.full(rows, float(at)),
    }


def pool(parts: Sequence[Table]) -> Table:
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    complete = ~np.isnan(rows["age"]) & (rows["days"] >= 0)
    return {name: values[complete] for name, values in rows.items()}


def asking(parts: Sequence[Table]) -> Callable[[Any], tuple[list[float], int]]:
    def ask(step: Any) -> tuple[list[float], int]:
        numbers = [np.round(np.asarray(step.answer(part)) * WORD) / WORD for part in parts]
        return np.sum(numbers, axis=0).tolist(), len(parts)

    return ask


def regress(parts: Sequence[Table], formula: str = FORMULA, family: str = "", **options: Any) -> Regression:
    query = regression_query(formula, family=family, **{"bounds": BOUNDS, **options})
    ask = asking(parts)
    if query.survival is not None:
        return fit_cox(query, ask, nodes=len(parts))
    return fit(query, lambda step: step.sums(*ask(step)), nodes=len(parts))


def design(rows: Table) -> np.ndarray:
    return np.stack([rows["age"], rows["dose"], rows["sex"]], axis=1)


def pooled(rows: Table, days: np.ndarray, died: np.ndarray, strata: np.ndarray | None = None) -> Any:
    model = hazards.PHReg(days, design(rows), status=died, strata=strata, ties="efron")
    start = model.fit(disp=0).params
    return model.fit(start_params=start, disp=0, method="newton", tol=1e-13)


def assert_equal(found: Regression, model: Any) -> None:
    assert found.coefficients == pytest.approx(model.params.tolist(), rel=1e-6, abs=1e-7)
    assert found.errors == pytest.approx(model.bse.tolist(), rel=1e-6)


def at_joined_times(parts: Sequence[Table], stratum: np.ndarray | None = None) -> Any:
    """The pooled rows at the groups of times that the regression has."""
    rows = pool(parts)
    strata = np.zeros(len(rows["days"])) if stratum is None else stratum
    times = SurvivalTimes(time="", event="", time_name="", event_name="", high=40.0, cells=fine_cells(40.0))
    cell = times.cells_of(rows["days"])
    censored = times.censored(rows["died"], cell)
    days, died = np.zeros(len(cell)), np.zeros(len(cell))
    for one in np.unique(strata):
        inside = strata == one
        counts = [np.bincount(cell[inside & (censored == no)], minlength=times.cells + 2) for no in (False, True)]
        until, happened = TimeGroups.of(*(count.astype(float) for count in counts)).at_risk(
            cell[inside], censored[inside]
        )
        days[inside], died[inside] = until + 0.5 * ~happened, happened
    return pooled(rows, days, died, None if stratum is None else strata)


def test_whole_days_with_enough_events_give_that_of_all_rows() -> None:
    parts = sites()
    for part in parts:  # nobody is censored before the last day, so that no row waits
        part["days"] = np.where((part["died"] == 0) & (part["days"] < 40), 40.0, part["days"])
        part["days"] = np.where((part["days"] > 25) & (part["died"] == 1), 25.0, part["days"])
    rows = pool(parts)
    assert np.bincount(rows["days"][rows["died"] == 1].astype(int))[1:26].min() >= 5
    found = regress(parts)
    model = pooled(rows, rows["days"], rows["died"])
    assert_equal(found, model)
    assert found.log_likelihood == pytest.approx(model.llf, rel=1e-8)
    assert (found.rows, found.events, found.times) == (len(rows["days"]), int(rows["died"].sum()), 25)
    assert found.rows + found.missing == 1500


@pytest.mark.parametrize("whole", [True, False])
def test_other_times_give_that_of_rows_at_the_joined_times(whole: bool) -> None:
    parts = sites(600 if whole else 300, whole=whole)
    found = regress(parts)
    assert_equal(found, at_joined_times(parts))
    rows = pool(parts)
    exact = pooled(rows, rows["days"], rows["died"])
    assert found.coefficients == pytest.approx(exact.params.tolist(), abs=0.2 * float(exact.bse.max()))


def test_strata_have_risk_sets_of_their_own() -> None:
    parts = sites()
    found = regress(parts, FORMULA + " + strata(ward, [0, 1, 2])")
    assert_equal(found, at_joined_times(parts, pool(parts)["ward"]))


def test_a_stratum_without_an_event_adds_nothing() -> None:
    parts = sites()
    for part in parts:
        part["died"][part["ward"] == 2] = 0.0
    found = regress(parts, FORMULA + " + strata(ward, [0, 1, 2])")
    assert_equal(found, at_joined_times(parts, pool(parts)["ward"]))


def test_many_terms_and_times_take_more_queries() -> None:
    parts = sites(whole=False)
    more = FORMULA + " + I(age ** 2) + age:dose + I(dose ** 2) + log1p(dose) + C(ward, [0, 1, 2])"
    found, few = regress(parts, more), regress(sites())
    assert found.queries > 2 * few.queries
    assert few.queries <= 8


def test_a_wide_grid_and_far_bounds_do_not_matter() -> None:
    parts = sites()
    wide = {**BOUNDS, "age": (-1000.0, 9000.0), "days": (0.0, 400.0)}
    assert regress(parts, bounds=wide).coefficients == pytest.approx(regress(parts).coefficients, rel=1e-6)


# --- effects of sites -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "target"), [("linear", "dose"), ("logistic", "died"), ("poisson", "stays")])
def test_an_intercept_of_each_site_is_that_of_indicators_of_sites(family: str, target: str) -> None:
    parts = sites()
    found = regress(parts, f"{target} ~ age + C(sex, [0, 1])", family, sites="fixed")
    rows = pool(parts)
    columns = [rows["age"], rows["sex"], *(rows["site"] == at for at in range(3))]
    x = np.stack(columns, axis=1).astype(float)
    if family == "linear":
        model = sm.OLS(rows[target], x).fit()
    else:
        kind = sm.families.Binomial() if family == "logistic" else sm.families.Poisson()
        model = sm.GLM(rows[target], x, family=kind).fit(tol=1e-13)
    assert found.terms == ("age", "C(sex)[T.1]")
    assert found.coefficients == pytest.approx(model.params[:2].tolist(), rel=1e-6, abs=1e-9)
    assert found.errors == pytest.approx(model.bse[:2].tolist(), rel=1e-6)
    assert found.p_values == pytest.approx(model.pvalues[:2].tolist(), rel=1e-5, abs=1e-12)
    assert (found.degrees, found.sites) == (int(model.df_resid), 3)
    assert found.log_likelihood == pytest.approx(model.llf, rel=1e-8)


def test_a_site_without_an_event_adds_nothing_to_coefficients() -> None:
    parts = sites()
    parts[0]["died"][:] = 0.0
    found = regress(parts, "died ~ age", "logistic", sites="fixed")
    rows = pool(parts[1:])
    x = np.stack([rows["age"], rows["site"] == 1, rows["site"] == 2], axis=1).astype(float)
    model = sm.GLM(rows["died"], x, family=sm.families.Binomial()).fit(tol=1e-13)
    assert found.coefficients == pytest.approx(model.params[:1].tolist(), rel=1e-6)
    assert found.errors == pytest.approx(model.bse[:1].tolist(), rel=1e-6)


@pytest.mark.parametrize("strata", ["", " + strata(ward, [0, 1, 2])"])
def test_a_hazard_of_each_site_is_exact_at_all_times(strata: str) -> None:
    parts = sites(180, whole=False)
    found, rows = (
        regress(parts, FORMULA + strata, sites="fixed", bounds={"age": (0, 120), "dose": (0, 10)}),
        pool(parts),
    )
    model = pooled(rows, rows["days"], rows["died"], rows["site"] + 10 * rows["ward"] * bool(strata))
    assert_equal(found, model)
    assert found.log_likelihood == pytest.approx(model.llf, rel=1e-8)
    assert found.queries <= 8


def test_a_column_that_differs_between_sites_alone() -> None:
    parts = sites()
    for at, part in enumerate(parts):
        part["dose"] = np.full(len(part["dose"]), float(at))
    with raises(ConfigurationError, check="constant-within-sites", match="dose"):
        regress(parts, "died ~ age + dose", "logistic", sites="fixed")


# --- what cannot be estimated ---------------------------------------------------------------------------------------


def test_an_event_that_is_neither_0_nor_1() -> None:
    parts = sites()
    parts[1]["died"][5] = 2.0
    with raises(ConfigurationError, check="wrong-target"):
        regress(parts)


def test_no_event() -> None:
    parts = sites()
    for part in parts:
        part["died"][:] = 0.0
    with raises(ConfigurationError, check="one-outcome"):
        regress(parts)


def test_times_that_are_all_below_the_first_point_of_the_grid() -> None:
    """All would tie, and the coefficients be those of no order of times."""
    parts = sites()
    for part in parts:
        part["days"] *= 1e-9
    with raises(ConfigurationError, check="one-time"):
        regress(parts)


def test_too_few_events() -> None:
    parts = sites()
    for part in parts:
        part["died"][:] = 0.0
        part["died"][3] = 1.0
    with raises(ConfigurationError, check="small-cell"):
        regress(parts)


@pytest.mark.parametrize(("events", "check"), [(0, "separation"), (2, "small-cell")])
def test_a_level_with_few_events(events: int, check: str) -> None:
    parts = sites()
    for part in parts:
        inside = np.flatnonzero(part["sex"] == 1)
        part["died"][inside] = 0.0
        part["died"][inside[: events if part is parts[0] else 0]] = 1.0
    with raises(ConfigurationError, check=check):
        regress(parts)


def test_a_stratum_of_three_rows() -> None:
    parts = sites()
    parts[0]["ward"][:3] = 3.0
    with raises(ConfigurationError, check="small-cell"):
        regress(parts, FORMULA + " + strata(ward, [0, 1, 2, 3])")


def test_a_column_that_foretells_the_order_of_times_has_no_estimate() -> None:
    parts = sites()
    for part in parts:
        part["dose"] = 10 - part["days"] / 4
        part["died"][:] = 1.0
    with raises(ConfigurationError, match="dose"):
        regress(parts, "Surv(days, died) ~ dose")


def test_other_clients_in_a_later_step_end_it() -> None:
    parts = sites()
    clients = iter([parts, parts, parts, parts[:2]])

    def ask(step: Any) -> tuple[list[float], int]:
        return asking(next(clients))(step)

    with raises(RoundFailed, check="other-clients"):
        fit_cox(regression_query(FORMULA, bounds=BOUNDS), ask, nodes=3)


@pytest.mark.parametrize(
    ("formula", "options", "check"),
    [
        ("Surv(days, died) ~ 1", {}, "no-terms"),
        ("Surv(days, died) ~ age - 1", {}, "no-terms"),
        ("Surv(days) ~ age", {}, "formula"),
        ("Surv(days, days) ~ age", {}, "formula"),
        ("Surv(days, died) ~ age + days", {}, "formula"),
        ("died ~ age + strata(ward, [0, 1])", {"family": "logistic"}, "formula"),
        ("Surv(days, died) ~ age + strata(ward, [0, 1]) + strata(sex, [0, 1])", {}, "formula"),
        ("Surv(days, died) ~ age + age:strata(ward, [0, 1])", {}, "formula"),
        ("Surv(days, died) ~ age + strata(ward)", {}, "no-groups"),
        ("Surv(days, died) ~ age", {"family": "linear"}, "family"),
        ("died ~ age", {"family": "cox"}, "family"),
        ("Surv(stay, died) ~ age", {}, "no-bounds"),
        ("died ~ age", {"family": "logistic", "bins": 9}, "no-effect"),
        ("Surv(days, died) ~ age", {"sites": "fixed", "bins": 9}, "no-effect"),
    ],
)
def test_what_cannot_be_asked(formula: str, options: dict[str, Any], check: str) -> None:
    with raises(ConfigurationError, check=check):
        regression_query(formula, bounds=BOUNDS, **options)


def test_columns_of_a_schema() -> None:
    schema = TableSchema(
        target="died",
        task="binary",
        classes=("no", "yes"),
        columns=(
            TableColumn(name="days", kind="number", high=90.0),
            TableColumn(name="sex", kind="category", categories=("F", "M")),
        ),
    )
    query = regression_query("Surv(days, died) ~ C(sex) + strata(sex)", schema=schema)
    assert query.survival is not None
    assert (query.target, query.survival.time, query.survival.high) == ("y", "days", 90.0)
    assert query.survival.groups == (("sex = F", "sex=F"), ("sex = M", "sex=M"))


def test_a_question_is_the_same_after_its_way_over_the_wire() -> None:
    query = regression_query(FORMULA + " + strata(ward, [0, 1, 2])", bounds=BOUNDS)
    assert question_from_plain(question_to_plain(query)) == query


def test_the_report_has_ratios_of_hazards() -> None:
    found = regress(sites())
    report = RegressionReport(found)
    assert report.lines()[0][2] == "exp(coef)"
    assert report.document()["terms"]["dose"]["ratio"] == pytest.approx(np.exp(found.coefficients[1]))
    assert report.document()["events"] == found.events
