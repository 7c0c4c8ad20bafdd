"""Regressions over a federation with secure sums, against statsmodels on the rows of all sites in one place.

    python benchmarks/glm.py [--quick] [--json]

Made tables of hospital stays: linear, logistic, Poisson and Cox regression, the latter over all sites' risk sets in
whole weeks, and with those of each site at any times, and linear and logistic regression with random intercepts of
sites, over 3, 10 and 50 sites of very unequal size whose patients differ, with missing values. Each is that of
`fedcore stats --glm --clients N`: real secure sums, in memory. A difference is relative to statsmodels' number
(`benchmarks/glm_effects.py` has that of a logistic regression with random intercepts), or absolute if that is below 1.
With dropouts each client leaves each exchange with a probability: then there is to be an error or the answer of all
clients, and no other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import pandas as pd
import statsmodels.api as sm
import statsmodels.formula.api as smf
from numpy.typing import NDArray
from statsmodels.duration.hazard_regression import PHReg

from benchmarks.common import APPS, Figure, Report, Table, parser, run, say, sized
from benchmarks.glm_effects import mixed_linear, mixed_logistic
from fedcore.data.regression.newton import Regression
from fedcore.data.regression.resolve import regression_query
from fedcore.errors import FedcoreError
from fedcore.flower.app import FlowerApp
from fedcore.flower.serverside import run_question
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation

Rows: TypeAlias = Mapping[str, NDArray[Any]]

COEFFICIENT_AIM: Final = 1e-6
ERROR_AIM: Final = 1e-5
MILLIONTH: Final = 1e-6
"""The unit of the two figures, whose reports have four digits after the point."""
BOUNDS: Final = {
    "age": (0.0, 120.0),
    "bmi": (10.0, 80.0),
    "lactate": (0.0, 40.0),
    "cost": (0.0, 200_000.0),
    "weeks": (0.0, 12.0),
}
COX: Final = "cox"
COX_OF_SITES: Final = "cox, each site's risk sets"
LINEAR_MIXED: Final = "linear, random intercepts"
LOGISTIC_MIXED: Final = "logistic, random intercepts"
EFFECTS: Final = {"": "", "each site's risk sets": "fixed", "random intercepts": "random"}
"""Of sites, by the second part of a regression's name; the first is its family."""
FORMULAS: Final = {
    "linear": "cost ~ age + bmi + log1p(lactate) + C(sex, [0, 1]) + C(ward, [0, 1, 2, 3, 4])",
    "logistic": "readmitted ~ age * C(sex, [0, 1]) + bmi + lactate + C(ward, [0, 1, 2, 3, 4])",
    "poisson": "days ~ age + I(age ** 2) + lactate + C(ward, [0, 1, 2, 3, 4])",
    COX: "Surv(weeks, died) ~ age + lactate + C(sex, [0, 1])",
    COX_OF_SITES: "Surv(time, died) ~ age + lactate + C(sex, [0, 1])",
    LINEAR_MIXED: "cost ~ age + bmi + log1p(lactate) + C(sex, [0, 1])",
    LOGISTIC_MIXED: "readmitted ~ age + lactate + C(sex, [0, 1])",
}
THEIRS: Final = {
    "linear": "cost ~ age + bmi + np.log1p(lactate) + C(sex) + C(ward)",
    "logistic": "readmitted ~ age * C(sex) + bmi + lactate + C(ward)",
    "poisson": "days ~ age + I(age ** 2) + lactate + C(ward)",
    COX: "weeks ~ age + lactate + C(sex)",
    COX_OF_SITES: "time ~ age + lactate + C(sex)",
    LINEAR_MIXED: "cost ~ age + bmi + np.log1p(lactate) + C(sex)",
    LOGISTIC_MIXED: "readmitted ~ age + lactate + C(sex)",
}
MIXED: Final = {LINEAR_MIXED: mixed_linear, LOGISTIC_MIXED: mixed_logistic}
DROP: Final = 0.1
SLOW: Final = {COX_OF_SITES, *MIXED}
MOST_ROWS: Final = 10_000
"""Up to which the slow ones take seconds in one place: of a Cox regression each row has a time of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One regression both ways: the largest differences, seconds of both, and what ours took."""

    coefficient: float
    error: float
    ours: float
    theirs: float
    queries: int


def main() -> int:
    """The command line."""
    return run(measure, parser("Regressions with secure sums against statsmodels on the pooled rows.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Every family on every table, then with dropouts."""
    sizes: list[tuple[int, int]] = sized(
        arguments,
        smallest=[(2_000, 3)],
        quick=[(10_000, 3), (10_000, 10)],
        whole=[(10_000, 3), (10_000, 10), (10_000, 50), (1_000_000, 10)],
    )
    trials: dict[tuple[str, int, int], Trial] = {}
    with tempfile.TemporaryDirectory() as folder:
        for rows, sites in sizes:
            parts = made(rows, sites)
            for family in FORMULAS:
                if family in SLOW and rows > MOST_ROWS:
                    continue
                say(f"{family}: {rows} rows at {sites} sites")
                trials[family, rows, sites] = trial(family, parts, Path(folder))
        answered, refused, wrong = dropouts(sized(arguments, smallest=2, quick=10, whole=40), Path(folder))
    figures = (
        Figure(
            name="largest_coefficient_difference",
            value=max(one.coefficient for one in trials.values()) / MILLIONTH,
            unit="millionths",
            aim=COEFFICIENT_AIM / MILLIONTH,
        ),
        Figure(
            name="largest_error_difference",
            value=max(one.error for one in trials.values()) / MILLIONTH,
            unit="millionths",
            aim=ERROR_AIM / MILLIONTH,
        ),
        Figure(name="other_answers_with_dropouts", value=wrong, unit="answers", aim=0),
        *(
            Figure(
                name=name,
                value=max(one.queries for (family, *_), one in trials.items() if (family in MIXED) == mixed),
                unit="queries",
                aim=aim,
            )
            for name, mixed, aim in (("most_queries", False, 10), ("most_queries_random_intercepts", True, 20))
        ),
        Figure(name="largest_seconds", value=max(one.ours for one in trials.values()), unit="s", aim=60),
    )
    header = ("regression", "rows", "sites", "queries", "seconds", "statsmodels", "coefficients", "errors")
    lines = tuple(
        (family, f"{rows:,}", str(sites), str(one.queries), f"{one.ours:.2f}", f"{one.theirs:.2f}",
         f"{one.coefficient:.1e}", f"{one.error:.1e}")
        for (family, rows, sites), one in trials.items()
    )  # fmt: skip
    return Report(
        benchmark="Regressions by secure sums",
        figures=figures,
        tables=(Table(title="Largest differences", header=header, rows=lines),),
        notes=(
            f"{answered + refused} regressions over 10 sites, each of which leaves each exchange with a probability of "
            f"{DROP:g}: {refused} ended with an error, {answered} gave that of all clients, "
            f"{wrong} another one.",
        ),
    )


def made(rows: int, sites: int) -> list[Rows]:
    """The sites' tables: the k-th has a share of the rows that falls as 1 / k, its own mean age, and an effect."""
    chance = np.random.default_rng(rows + sites)
    shares = 1 / np.arange(1, sites + 1)
    sizes = np.maximum((rows * shares / shares.sum()).astype(int), 20)
    return [_site(chance, int(size), chance.normal(60, 8), chance.normal()) for size in sizes]


def _site(chance: np.random.Generator, rows: int, middle: float, effect: float) -> Rows:
    age, bmi = chance.normal(middle, 12, rows).clip(18, 105), chance.normal(27, 5, rows).clip(14, 70)
    lactate, ward = chance.lognormal(0.5, 0.6, rows), chance.choice(5, rows, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    sex = chance.integers(0, 2, rows)
    risk = -4 + 0.03 * age + 0.02 * bmi + 0.3 * lactate - 0.4 * sex + 0.2 * (ward == 2) + 0.4 * effect
    columns: dict[str, NDArray[Any]] = {
        "age": np.where(chance.random(rows) < 0.03, np.nan, age),
        "bmi": bmi,
        "lactate": np.where(chance.random(rows) < 0.1, np.nan, lactate),
        "sex": sex.astype(float),
        "ward": ward.astype(float),
        "readmitted": (chance.random(rows) < 1 / (1 + np.exp(-risk))).astype(float),
        "days": chance.poisson(np.exp(0.5 + 0.015 * age + 0.1 * lactate)).astype(float),
        **_survival(chance, age, sex),
        "cost": 2000 + 150 * age + 4000 * np.log1p(lactate) - 800 * sex + 1500 * effect + chance.gamma(2, 3000, rows),
    }
    return columns


def _survival(chance: np.random.Generator, age: NDArray[Any], sex: NDArray[Any]) -> Rows:
    """Times until death or the end of a row's observation, and the same in whole weeks, of which twelve are seen."""
    time, until = chance.exponential(15 * np.exp(-0.02 * (age - 60) + 0.3 * sex)), chance.uniform(2, 20, len(age))
    observed = np.minimum(time, until)
    return {
        "time": observed,
        "weeks": np.minimum(np.ceil(observed), 12),
        "died": (time <= np.minimum(until, 12)).astype(float),
    }


def trial(family: str, parts: list[Rows], folder: Path) -> Trial:
    """One regression both ways."""
    start = time.perf_counter()
    found = ours(family, parts, folder)
    middle = time.perf_counter()
    coefficients, errors = theirs(family, parts)
    end = time.perf_counter()
    return Trial(
        coefficient=_largest(found.terms, found.coefficients, coefficients),
        error=_largest(found.terms, found.errors, errors),
        ours=middle - start,
        theirs=end - middle,
        queries=found.queries,
    )


def ours(family: str, parts: list[Rows], folder: Path, *, drop: float = 0.0, seed: int = 0) -> Regression:
    """By secure sums; raises FedcoreError if there is no answer."""
    home = Path(tempfile.mkdtemp(dir=folder))
    for at, columns in enumerate(parts):
        np.savez(home / f"part-{at}.npz", **dict[str, Any](columns))
    kind, effects = _kind(family)
    query = regression_query(FORMULAS[family], family=kind, bounds=BOUNDS, sites=effects)
    settings = JobSettings()
    simulation = Simulation(
        app=FlowerApp.load(_planned(family, home) if effects == "random" else APPS / "rows"),
        clients=len(parts),
        run_config={"folder": str(home)},
        settings=settings,
        drop=drop,
        seed=seed,
    )
    with contextlib.redirect_stdout(sys.stderr), simulation.open() as backend:
        return cast(
            Regression, run_question(query, backend=backend, run="simulation", aggregation=settings.aggregation)
        )


def _kind(family: str) -> tuple[str, str]:
    """The family, and the effects of sites, as `regression_query` calls them."""
    name, _, effects = family.partition(", ")
    return name, EFFECTS[effects]


def _planned(family: str, folder: Path) -> Path:
    """The app with a study plan of this regression, without which no client answers one with random effects."""
    app = shutil.copytree(APPS / "rows", folder / "app")
    kind, effects = _kind(family)
    words = {"name": "regression", "glm": FORMULAS[family], "family": kind, "site-effects": effects}
    lines = [f"{key} = {json.dumps(value)}" for key, value in words.items()]
    (app / "plan.toml").write_text("\n".join(["[[question]]", *lines, ""]), encoding="utf-8")
    bounds = [f"{name} = [{low}, {high}]" for name, (low, high) in BOUNDS.items()]
    with (app / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write(
            "\n".join(
                [
                    "",
                    "[tool.fedcore.statistics]",
                    'plan = "plan.toml"',
                    "",
                    "[tool.fedcore.statistics.bounds]",
                    *bounds,
                    "",
                ]
            )
        )
    return app


def theirs(family: str, parts: list[Rows]) -> tuple[dict[str, float], dict[str, float]]:
    """Coefficients and standard errors by name, of all rows in one place."""
    frames = [pd.DataFrame({**columns, "site": at}) for at, columns in enumerate(parts)]
    frame = pd.concat(frames).dropna(subset=_missing(family))
    frame = frame.astype({"sex": int, "ward": int})
    if family in MIXED:
        coefficients, errors = MIXED[family](THEIRS[family], frame)
        return _our_names(coefficients), _our_names(errors)
    if family in (COX, COX_OF_SITES):
        strata = frame.site if family == COX_OF_SITES else None
        cox = PHReg.from_formula(THEIRS[family], frame, status=frame.died, strata=strata, ties="efron")
        rough = cox.fit(disp=0).params
        fitted = cox.fit(start_params=rough, method="newton", tol=1e-12, disp=0)
        names = list(cox.exog_names)
        return dict(zip(names, fitted.params, strict=True)), dict(zip(names, fitted.bse, strict=True))
    if family == "linear":
        model = smf.ols(THEIRS[family], frame).fit()
    else:
        kind = sm.families.Binomial() if family == "logistic" else sm.families.Poisson()
        model = smf.glm(THEIRS[family], frame, family=kind).fit(tol=1e-13)
    return _our_names(model.params), _our_names(model.bse)


def _our_names(values: Mapping[str, float]) -> dict[str, float]:
    return {str(name).replace("np.", ""): float(value) for name, value in values.items()}


def _missing(family: str) -> list[str]:
    return [name for name in ("age", "bmi", "lactate") if name in THEIRS[family]]


def dropouts(count: int, folder: Path) -> tuple[int, int, int]:
    """How many regressions gave the answer of all clients, an error, or another answer."""
    parts = made(5_000, 10)
    results = {"answered": 0, "refused": 0, "wrong": 0}
    for seed in range(count):
        say(f"dropouts: {seed + 1} of {count}")
        try:
            family = (COX, "logistic")[seed % 2]
            found = ours(family, parts, folder, drop=DROP, seed=seed)
        except FedcoreError:
            results["refused"] += 1
            continue
        results["answered" if found.clients == len(parts) and _same(family, found, parts) else "wrong"] += 1
    return results["answered"], results["refused"], results["wrong"]


def _same(family: str, found: Regression, parts: list[Rows]) -> bool:
    coefficients, _ = theirs(family, parts)
    return _largest(found.terms, found.coefficients, coefficients) < COEFFICIENT_AIM


def _largest(names: Sequence[str], values: Sequence[float], reference: Mapping[str, float]) -> float:
    """Of all differences, relative to the reference if that is above 1."""
    pairs = [(value, reference[name]) for name, value in zip(names, values, strict=True)]
    return max(abs(value - other) / max(abs(other), 1.0) for value, other in pairs)


if __name__ == "__main__":
    raise SystemExit(main())
