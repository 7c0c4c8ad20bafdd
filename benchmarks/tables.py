"""The app that `fedcore new --csv` writes, against scikit-learn's logistic regression on the rows of all sites.

    python benchmarks/tables.py --data-dir DATA [--quick] [--json]

Six made tables and heart disease (UCI), each at four sites of unequal size. One site's table makes the app, which runs
as it was written: `fedcore new`, `fedcore simulate` with secure sums, `fedcore predict` of its best model. AUC is on
new rows, which no site trained on or tested with. The peer is scikit-learn's pipeline of imputation, standardisation,
one-hot and LogisticRegression on all rows of all sites in one place, those among them that the sites keep for testing.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks.common import Figure, Report, Table, data_parser, run, say, sized
from benchmarks.made_tables import HEART, MADE, SITES, TARGET, CohortTable, heart_disease
from fedcore.data.files import data_folder

MARGIN: Final = 0.005
"""What a federation may lose against all rows in one place."""
NEW_ROWS: Final = 10_000
COLUMNS: Final = ("fedcore, linear", "fedcore, network", "pooled", "pooled, training rows", "smallest site alone")


def main() -> int:
    """The command line."""
    options = data_parser("The app of fedcore new --csv against pooled logistic regression, by AUC on new rows.")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All tables with all seeds; with --quick one seed."""
    names = sized(arguments, smallest=("rare",), quick=(*MADE, HEART), whole=(*MADE, HEART))
    seeds = sized(arguments, smallest=(1,), quick=(1,), whole=(1, 2, 3))
    rows, new_rows = sized(arguments, smallest=(400, 500), quick=(1500, NEW_ROWS), whole=(1500, NEW_ROWS))
    models = sized(arguments, smallest=("linear",), quick=("linear",), whole=("linear", "network"))
    scores: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for name in names:
        for seed in seeds:
            rng = np.random.default_rng(seed)
            table = heart_disease(data_folder(), rng) if name == HEART else MADE[name](rows, new_rows, rng)
            scores[name].append(score(table, models))
            say(f"{name}, seed {seed}: " + ", ".join(f"{what} {auc:.4f}" for what, auc in scores[name][-1].items()))
    return report(scores, seeds)


def score(table: CohortTable, models: Sequence[str]) -> dict[str, float]:
    """AUC on the new rows, by method."""
    with tempfile.TemporaryDirectory(prefix="fedcore-benchmark-") as name:
        folder = Path(name)
        found = {f"fedcore, {model}": _auc(table.new, federated(table, model, folder / model)) for model in models}
    trained = pd.concat([_training_rows(site) for site in table.sites])
    peers = {COLUMNS[2]: pd.concat(table.sites), COLUMNS[3]: trained, COLUMNS[4]: min(table.sites, key=len)}
    return found | {what: _auc(table.new, _pooled(rows, table.new)) for what, rows in peers.items()}


def federated(table: CohortTable, model: str, folder: Path) -> NDArray[np.float64]:
    """Probabilities for the new rows, as a user gets them: the commands of docs/howto/csv.md, from CSV to CSV."""
    (folder / "sites").mkdir(parents=True)
    for index, site in enumerate(table.sites):
        site.to_csv(folder / "sites" / f"site-{index}.csv", index=False)
    table.new.drop(columns=TARGET).to_csv(folder / "new.csv", index=False)
    categories = [word for text in table.categories for word in ("--categories", text)]
    _fedcore(folder, "new", "app", "--csv", "sites/site-0.csv", "--target", TARGET, "--model", model, *categories)
    sites = ("--clients", str(len(table.sites)), "--data-dir", str(folder), "--run-config", 'csv="sites"')
    _fedcore(folder, "simulate", "app", *sites, "--engine", "inline", "--best", "best.safetensors")
    words = ("--app", "app", "--input", "new.csv", "--out", "answers.csv")
    _fedcore(folder, "predict", "best.safetensors", *words)
    with (folder / "answers.csv").open(encoding="utf-8") as file:
        return np.array([float(row["probability of 1"]) for row in csv.DictReader(file)])


def _fedcore(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "fedcore", *words]
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path, "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-2000:]}")


def _training_rows(site: pd.DataFrame) -> pd.DataFrame:
    """Those that a site trains on: all but every fifth, as fedcore.data.tables divides them."""
    order = np.random.default_rng(0).permutation(len(site))
    return site.iloc[np.sort(order[np.arange(len(site)) % 5 != 0])]


def _pooled(rows: pd.DataFrame, new: pd.DataFrame) -> NDArray[np.float64]:
    features = rows.drop(columns=TARGET)
    numbers = [name for name in features if pd.api.types.is_numeric_dtype(features[name])]
    others = [name for name in features if name not in numbers]
    preparation = make_column_transformer(
        (make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler()), numbers),
        (make_pipeline(SimpleImputer(strategy="constant", fill_value="none"), _one_hot()), others),
    )
    fitted: Pipeline = make_pipeline(preparation, LogisticRegression(max_iter=5000)).fit(features, rows[TARGET])
    chances: NDArray[np.float64] = fitted.predict_proba(new.drop(columns=TARGET))[:, 1]
    return chances


def _one_hot() -> Any:
    return OneHotEncoder(handle_unknown="ignore")


def _auc(new: pd.DataFrame, chances: NDArray[np.float64]) -> float:
    return float(roc_auc_score(new[TARGET], chances))


def report(scores: Mapping[str, Sequence[Mapping[str, float]]], seeds: Sequence[int]) -> Report:
    """A figure for each table: AUC of the app as it is written, less that of all rows in one place."""
    means = {
        name: {what: fmean(one[what] for one in found) for what in COLUMNS if what in found[0]}
        for name, found in scores.items()
    }
    figures = [
        Figure(
            name=f"auc_less_pooled_{name}",
            value=mean[COLUMNS[0]] - mean[COLUMNS[2]],
            unit="AUC",
            aim=-MARGIN,
            at_least=True,
        )
        for name, mean in means.items()
    ]
    rows = [(name, *(f"{mean.get(what, math.nan):.4f}" for what in COLUMNS)) for name, mean in means.items()]
    return Report(
        benchmark="tables",
        figures=tuple(figures),
        tables=(Table(title="AUC on new rows", header=("table", *COLUMNS), rows=tuple(rows)),),
        notes=(
            f"means over the seeds {', '.join(map(str, seeds))}; sites have "
            f"{', '.join(f'{share:.0%}' for share in SITES)} of the rows, in heart disease those of the four hospitals",
            "pooled: scikit-learn's LogisticRegression on all rows of all sites; the federation trains on four fifths "
            "of them (pooled, training rows) and chooses its best round by the rest",
            "the app is as fedcore new --csv writes it from the first site's table; linear is the default for classes",
            *(f"{name}: {make.__doc__}" for name, make in MADE.items()),
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
