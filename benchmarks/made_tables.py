"""Tables at several sites: made ones, whose new rows are drawn like the old ones, and heart disease at hospitals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

TARGET: Final = "outcome"
HEART: Final = "heart_disease"
SITES: Final = (0.5, 0.25, 0.15, 0.1)
HOSPITALS: Final = ("cleveland", "hungarian", "va", "switzerland")
_HEART_COLUMNS: Final = (
    *("age", "sex", "chest_pain", "blood_pressure", "cholesterol", "sugar", "ecg", "heart_rate", "angina", "oldpeak"),
    *("slope", "vessels", "thal"),
)

Logits = tuple[dict[str, Any], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortTable:
    """Rows of sites, with the column TARGET of 0 and 1, and new rows.

    categories: as `fedcore new --categories` takes them.
    """

    sites: tuple[pd.DataFrame, ...]
    new: pd.DataFrame
    categories: tuple[str, ...] = ()


def _made(draw: Callable[[NDArray[np.int64], np.random.Generator], Logits]) -> Callable[..., CohortTable]:
    def make(rows: int, new_rows: int, rng: np.random.Generator) -> CohortTable:
        n = rows + new_rows
        site = rng.choice(len(SITES), n, p=SITES)
        columns, logits = draw(site, rng)
        table = pd.DataFrame(columns)
        table[TARGET] = (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(int)
        old = np.arange(n) < rows
        sites = tuple(table[old & (site == index)] for index in range(len(SITES)))
        return CohortTable(sites=sites, new=table[~old])

    make.__doc__ = draw.__doc__
    return make


def _rare(site: NDArray[np.int64], rng: np.random.Generator) -> Logits:
    """One row in ten is positive, of six columns of three kinds."""
    n = len(site)
    age, bmi, marker = rng.normal(60, 12, n).round(), rng.normal(27, 5, n).round(1), rng.lognormal(1, 1, n).round(2)
    sex, smoker = rng.choice(["f", "m"], n), rng.choice(["never", "former", "current"], n, p=[0.5, 0.3, 0.2])
    diabetes = (rng.random(n) < 0.2).astype(int)
    columns = {"age": age, "bmi": bmi, "marker": marker, "sex": sex, "smoker": smoker, "diabetes": diabetes}
    logits = -3.2 + 0.05 * (age - 60) + 0.06 * (bmi - 27) + 0.5 * np.log(marker + 0.01)
    return columns, logits + 0.8 * (smoker == "current") + 0.4 * (sex == "m") + 0.7 * diabetes


def _skewed(site: NDArray[np.int64], rng: np.random.Generator) -> Logits:
    """Eight columns over several orders of magnitude, whose logarithms count."""
    normal = rng.normal(0, 1, (len(site), 8))
    columns = {f"lab{j}": np.exp(normal[:, j] * (1 + 0.1 * j) + j).round(4) for j in range(8)}
    return columns, -0.5 + normal[:, :5] @ np.array([0.8, -0.6, 0.5, 0.4, -0.3])


def _correlated(site: NDArray[np.int64], rng: np.random.Generator) -> Logits:
    """24 columns that are mixtures of four factors."""
    factors, mixture = rng.normal(0, 1, (len(site), 4)), np.random.default_rng(5).normal(0, 1, (4, 24))
    values = factors @ mixture + 0.3 * rng.normal(0, 1, (len(site), 24))
    columns = {f"m{j}": (values[:, j] * 10 + 50).round(1) for j in range(24)}
    return columns, -0.3 + factors @ np.array([1, -0.7, 0.5, 0.2]) + 0.4 * (values[:, 0] - values[:, 1])


def _missing(site: NDArray[np.int64], rng: np.random.Generator) -> Logits:
    """Six columns of which three tenths are missing, and two of categories."""
    n = len(site)
    values, code = rng.normal(0, 1, (n, 6)), rng.choice(list("ABCDEFGH"), n)
    ward = rng.choice(["w1", "w2", "w3", "w4", "w5"], n, p=[0.5, 0.2, 0.15, 0.1, 0.05])
    effect = dict(zip("ABCDEFGH", (0, 0.5, -0.5, 1, -1, 0.2, 0.3, 0), strict=True))
    logits = -1 + values @ np.array([0.8, 0.5, -0.5, 0.3, 0.2, 0]) + np.array([effect[one] for one in code])
    logits += ward == "w5"
    values[rng.random((n, 6)) < 0.3] = np.nan
    columns: dict[str, Any] = {f"x{j}": values[:, j].round(3) for j in range(6)}
    columns |= {"ward": ward, "code": pd.Series(code).where(rng.random(n) >= 0.15)}
    return columns, logits


def _shifted(site: NDArray[np.int64], rng: np.random.Generator) -> Logits:
    """means, spreads and shares of positives differ from site to site."""
    means = np.array([[0, 0, 0, 0, 0, 0], [1, -1, 0.5, 0, 1, 0], [-1, 1, 0, 1, -0.5, 0.5], [2, 0, -1, 0.5, 0, 1]])
    values = rng.normal(0, 1, (len(site), 6)) * (1 + 0.3 * site[:, None]) + means[site]
    columns = {f"x{j}": values[:, j].round(3) for j in range(6)}
    return columns, np.array([-1, 0.5, -2, 1.0])[site] + values @ np.array([0.7, -0.5, 0.4, 0.3, 0, 0])


def _interactions(site: NDArray[np.int64], rng: np.random.Generator) -> Logits:
    """A product and a magnitude count, which no linear model sees."""
    values = rng.normal(0, 1, (len(site), 8))
    columns = {f"x{j}": values[:, j].round(3) for j in range(8)}
    logits = -1 + 0.8 * values[:, 0] + 0.8 * values[:, 1] * values[:, 2] + 0.6 * np.abs(values[:, 3])
    return columns, logits - 0.5 * values[:, 4]


MADE: Final[Mapping[str, Callable[..., CohortTable]]] = {
    "rare": _made(_rare),
    "skewed": _made(_skewed),
    "correlated": _made(_correlated),
    "missing": _made(_missing),
    "shifted": _made(_shifted),
    "interactions": _made(_interactions),
}


def heart_disease(data: Path, rng: np.random.Generator) -> CohortTable:
    """920 patients of four hospitals with 13 columns; a third of each hospital's are new rows.

    Source: Janosi, Steinbrunn, Pfisterer and Detrano (1988), UCI.
    """
    hospitals, new = [], []
    for name in HOSPITALS:
        path = data / HEART / f"processed.{name}.data"
        table = pd.read_csv(path, header=None, names=[*_HEART_COLUMNS, TARGET], na_values="?")
        table[TARGET] = (table[TARGET] > 0).astype(int)
        for column in ("chest_pain", "ecg", "slope", "thal"):
            table[column] = table[column].map("c{:.0f}".format, na_action="ignore").astype("object")
        is_new = rng.random(len(table)) < 1 / 3
        hospitals.append(table[~is_new])
        new.append(table[is_new])
    categories = ("chest_pain=c1|c2|c3|c4", "ecg=c0|c1|c2", "slope=c1|c2|c3", "thal=c3|c6|c7")
    return CohortTable(sites=tuple(hospitals), new=pd.concat(new), categories=categories)
