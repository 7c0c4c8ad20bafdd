"""Random intercepts of sites by sums: statsmodels' MixedLM says the same of all rows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.later import Later
from support.raising import raises
from support.site_tables import BOUNDS, TARGETS, Table, asking, pool, regress, sites

from fedcore.data.questions import question_from_plain, question_to_plain
from fedcore.data.regression.mixed import MixedStep
from fedcore.data.regression.mixed_fit import fit_mixed
from fedcore.data.regression.resolve import regression_query
from fedcore.data.regression.step import RegressionStep
from fedcore.errors import ConfigurationError, RoundFailed

formulas = Later("statsmodels.formula.api")


def mixed_lm(parts: Sequence[Table], formula: str) -> Any:
    import pandas

    rows = pool(parts, incomplete=formula.endswith("~ 1"))
    model = formulas.mixedlm(formula, pandas.DataFrame(rows), groups="site")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says so if it comes no closer than rounding lets it
        return model.fit(reml=True, method=["bfgs"], gtol=1e-11, maxiter=500)


@pytest.mark.parametrize(
    ("terms", "count", "spread"),
    [("age + sex", 8, 0.7), ("age * sex", 5, 0.3), ("age + sex - 1", 12, 3.0), ("1", 5, 0.5)],
)
def test_a_linear_one_is_that_of_mixed_lm(terms: str, count: int, spread: float) -> None:
    parts = sites(count, spread)
    ours = regress(parts, f"cost ~ {terms}", "linear")
    theirs = mixed_lm(parts, f"cost ~ {terms}")
    names = list(ours.terms)
    assert ours.coefficients == pytest.approx(theirs.fe_params[names].tolist(), rel=1e-6)
    assert ours.errors == pytest.approx(theirs.bse_fe[names].tolist(), rel=1e-5)
    assert ours.p_values == pytest.approx(theirs.pvalues[names].tolist(), rel=1e-4, abs=1e-12)
    assert ours.site_variance == pytest.approx(float(theirs.cov_re.iloc[0, 0]), rel=1e-5)
    assert ours.dispersion == pytest.approx(theirs.scale, rel=1e-6)
    assert ours.log_likelihood == pytest.approx(theirs.llf, rel=1e-9)
    assert (ours.sites, ours.rows) == (count, theirs.nobs)
    assert ours.queries <= 12


@pytest.mark.parametrize(("spread", "rows"), [(20.0, 60), (1.0, 3000)])
def test_intercepts_that_differ_much(spread: float, rows: int) -> None:
    parts = sites(6, spread, rows=rows)
    ours, theirs = regress(parts, "cost ~ age", "linear"), pool(parts)
    ratio = float(ours.site_variance or 0.0) / ours.dispersion
    assert ours.coefficients == pytest.approx(generalised(theirs, ratio).tolist(), rel=1e-6)


def generalised(rows: Table, ratio: float) -> np.ndarray:
    """Least squares of rows whose sites have intercepts, by the means of these sites."""
    x, y = np.stack([np.ones(len(rows["age"])), rows["age"]], axis=1), rows["cost"].copy()
    for at in np.unique(rows["site"]):
        inside = rows["site"] == at
        part = 1 - 1 / np.sqrt(1 + ratio * inside.sum())
        x[inside] -= part * x[inside].mean(axis=0)
        y[inside] -= part * y[inside].mean()
    return np.asarray(np.linalg.lstsq(x, y)[0])


@pytest.mark.parametrize(("family", "target"), TARGETS.items())
def test_sites_that_do_not_differ_have_no_variance(family: str, target: str) -> None:
    import pandas

    one = sites(1, 0.0, rows=200)[0]
    parts = [one, one, one]
    ours = regress(parts, f"{target} ~ age", family)
    assert ours.site_variance == 0.0
    theirs = formulas.glm(f"{target} ~ age", pandas.DataFrame(pool(parts)), family=families(family)).fit(tol=1e-13)
    assert ours.coefficients == pytest.approx(theirs.params.tolist(), rel=1e-6)
    assert ours.errors == pytest.approx(theirs.bse.tolist(), rel=1e-6)


def families(family: str) -> Any:
    import statsmodels.api as sm

    names = {"linear": "Gaussian", "logistic": "Binomial", "poisson": "Poisson"}
    return getattr(sm.families, names[family])()


@pytest.mark.parametrize(("family", "target"), TARGETS.items())
def test_a_site_without_a_row_counts_for_nothing(family: str, target: str) -> None:
    parts = sites(5)
    empty = {name: values[:0] for name, values in parts[0].items()}
    ours, more = regress(parts, f"{target} ~ age", family), regress([*parts, empty], f"{target} ~ age", family)
    assert (more.sites, more.clients) == (5, 6)
    assert more.coefficients == pytest.approx(ours.coefficients, rel=1e-7)
    assert more.site_variance == pytest.approx(ours.site_variance, rel=1e-6)


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_sites_all_of_whose_rows_have_one_outcome(family: str) -> None:
    parts = sites(6, 1.0)
    target = TARGETS[family]
    parts[0][target][:] = 0.0
    ours = regress(parts, f"{target} ~ age", family)
    assert (ours.site_variance or 0.0) > 0.5
    assert all(np.isfinite(ours.errors))


# --- what cannot be estimated, and what travels ---


def test_one_site_alone() -> None:
    with raises(ConfigurationError, check="too-few-sites"):
        regress(sites(1), "cost ~ age", "linear")


def test_terms_that_determine_the_target_within_sites() -> None:
    parts = sites(4)
    for part in parts:
        part["cost"] = 3 * part["age"] + 100 * part["site"]
    with raises(ConfigurationError, check="no-residuals"):
        regress(parts, "cost ~ age", "linear")


@pytest.mark.parametrize(("unit", "check"), [(1e9, "bounds-too-narrow"), (1e-9, "no-residuals")])
def test_a_target_whose_bounds_are_those_of_another(unit: float, check: str) -> None:
    parts = sites(4)
    for part in parts:
        part["cost"] *= unit
    with raises(ConfigurationError, check=check, match="cost"):
        regress(parts, "cost ~ age", "linear")


def test_a_cox_regression_has_none() -> None:
    with raises(ConfigurationError, check="frailty"):
        regression_query("Surv(age, sick) ~ sex", bounds=(0.0, 100.0), sites="random")


def test_other_words_are_refused() -> None:
    with raises(ConfigurationError, check="site-effects"):
        regression_query("cost ~ age", family="linear", bounds=BOUNDS, sites="mixed")


@pytest.mark.parametrize("leaves_at", [1, 3])
def test_other_clients_in_a_later_step_end_it(leaves_at: int) -> None:
    parts = sites(4)
    clients = iter([parts] * leaves_at + [parts[:3]])
    query = regression_query("cost ~ age", family="linear", bounds=BOUNDS, sites="random")

    def ask(step: RegressionStep | MixedStep) -> tuple[list[float], int]:
        return asking(next(clients))(step)

    with raises(RoundFailed, check="other-clients"):
        fit_mixed(query, ask, nodes=4)


def test_a_question_is_the_same_after_its_way_over_the_wire() -> None:
    query = regression_query("cost ~ age", family="linear", bounds=BOUNDS, sites="random")
    assert question_from_plain(question_to_plain(query)) == query
