"""The app that `fedcore new --csv` writes, against scikit-learn's logistic regression on the rows of all sites.

    python benchmarks/tables.py --data-dir DATA [--seeds N] [--quick] [--json]

Six made tables and heart disease (UCI), each at four sites of unequal size. One site's table makes the app, which runs
as it was written: `fedcore new`, `fedcore simulate` with secure sums, `fedcore predict` of its best model. AUC is on
new rows, which no site trained on or tested with. The peer is scikit-learn's pipeline of imputation, standardisation,
one-hot and LogisticRegression on all rows of all sites in one place, those among them that the sites keep for testing.
"""

from __future__ import annotations

import argparse
import csv
import math
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Self, TypeAlias

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks.common import Figure, Report, Table, data_parser, keep, run, say, sized
from benchmarks.made_tables import HEART, MADE, SITES, TARGET, CohortTable, heart_disease
from fedcore.data.files import data_folder
from fedcore.training.metrics import calibration_error

Column: TypeAlias = NDArray[Any]

MARGIN: Final = 0.005
"""What a federation may lose against all rows in one place, in the mean over the seeds."""
NEW_ROWS: Final = 10_000
KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "linear": ("linear", "none"),
    "linear, class weights": ("linear", "balanced"),
    "network": ("network", "none"),
}
"""The app's model and its class-weight."""
POOLED: Final = ("pooled", "pooled, training rows", "pooled, class weights", "smallest site alone")
CELLS: Final = 200
"""Of the sums that an app's AUC is made of, in which a recalibration sees the sites' test rows."""
ONLY_FIRST: Final = 1
"""Seeds with which all kinds are tried; the others are for the app as it is written."""
LOG: Final = "log.txt"
_STARTING: Final = multiprocessing.get_context("forkserver")
_STARTING.set_forkserver_preload(
    ["sklearn.datasets", "fedcore.cli.main", "fedcore.cli.simulate", "fedcore.api.trained", "torch.export"]
)
AT_ONCE: Final = 2
"""Tables that are worked on at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Of probabilities for the new rows.

    ece: as fedcore.training.metrics.calibration_error.
    recalibrated: Brier score and ece after Platt's two numbers, from the sums over the sites' test rows.
    """

    auc: float
    brier: float
    ece: float
    recalibrated: tuple[float, float] = (math.nan, math.nan)

    @classmethod
    def of(cls, labels: Column, chances: Column) -> Self:
        """Labels and chances [n]."""
        return cls(auc=float(roc_auc_score(labels, chances)), brier=_brier(labels, chances), ece=_ece(labels, chances))


def main() -> int:
    """The command line."""
    options = data_parser("The app of fedcore new --csv against pooled logistic regression, by AUC on new rows.")
    options.add_argument("--seeds", type=int, help="tables of each kind (default: 5, with --quick 1)")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All tables with all seeds; with --quick one seed, and the app as it is written."""
    names = sized(arguments, smallest=("rare",), quick=(*MADE, HEART), whole=(*MADE, HEART))
    seeds = range(1, 1 + (arguments.seeds or sized(arguments, smallest=1, quick=1, whole=5)))
    rows, new_rows = sized(arguments, smallest=(400, 500), quick=(1500, NEW_ROWS), whole=(1500, NEW_ROWS))
    kinds = sized(arguments, smallest=("linear",), quick=("linear",), whole=tuple(KINDS))
    scores: dict[str, list[dict[str, Score]]] = {name: [] for name in names}

    def one(name: str, seed: int) -> dict[str, Score]:
        rng = np.random.default_rng(seed)
        table = heart_disease(data_folder(), rng) if name == HEART else MADE[name](rows, new_rows, rng)
        of_table = score(table, kinds if seed <= ONLY_FIRST else kinds[:1])
        say(f"{name}, seed {seed}: " + ", ".join(f"{what} {one.auc:.4f}" for what, one in of_table.items()))
        return of_table

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for seed in seeds:
            for name, of_table in zip(names, pool.map(one, names, [seed] * len(names)), strict=True):
                scores[name].append(of_table)
            keep(report(scores, range(1, seed + 1)), arguments)
    return report(scores, seeds)


def score(table: CohortTable, kinds: Sequence[str]) -> dict[str, Score]:
    """On the new rows, by method."""
    labels, scores = table.new[TARGET].to_numpy(), dict[str, Score]()
    tested = pd.concat([site.drop(_training_rows(site).index) for site in table.sites])
    with tempfile.TemporaryDirectory(prefix="fedcore-benchmark-") as name:
        for number, kind in enumerate(kinds):
            asked = pd.concat([tested, table.new])
            chances = federated(table, asked, *KINDS[kind], Path(name) / str(number))
            old, new = chances[: len(tested)], chances[len(tested) :]
            again = _recalibrated(tested[TARGET].to_numpy(), old, new)
            scores[kind] = replace(Score.of(labels, new), recalibrated=(_brier(labels, again), _ece(labels, again)))
    everything, trained = pd.concat(table.sites), pd.concat([_training_rows(site) for site in table.sites])
    peers = {
        "pooled": _pooled(everything, table.new),
        "pooled, training rows": _pooled(trained, table.new),
        "pooled, class weights": _corrected(_pooled(everything, table.new, "balanced"), everything[TARGET].mean()),
        "smallest site alone": _pooled(min(table.sites, key=len), table.new),
    }
    return scores | {what: Score.of(labels, chances) for what, chances in peers.items()}


def federated(table: CohortTable, asked: pd.DataFrame, model: str, weight: str, folder: Path) -> Column:
    """Probabilities for rows, as a user gets them: the commands of docs/howto/csv.md, from CSV to CSV."""
    (folder / "sites").mkdir(parents=True)
    for index, site in enumerate(table.sites):
        site.to_csv(folder / "sites" / f"site-{index}.csv", index=False)
    asked.drop(columns=TARGET).to_csv(folder / "new.csv", index=False)
    categories = [word for text in table.categories for word in ("--categories", text)]
    _fedcore(folder, "new", "app", "--csv", "sites/site-0.csv", "--target", TARGET, "--model", model, *categories)
    sites = ("--clients", str(len(table.sites)), "--data-dir", str(folder))
    config = ("--run-config", f'csv="sites" class-weight="{weight}"')
    _fedcore(folder, "simulate", "app", *sites, *config, "--engine", "inline", "--best", "best.safetensors")
    words = ("--app", "app", "--input", "new.csv", "--out", "answers.csv")
    _fedcore(folder, "predict", "best.safetensors", *words)
    with (folder / "answers.csv").open(encoding="utf-8") as file:
        return np.array([float(row["probability of 1"]) for row in csv.DictReader(file)])


def _fedcore(folder: Path, *words: str) -> None:
    """A command as a user types it, in a process that has everything imported: to import takes longer than to train."""
    process = _STARTING.Process(target=_command, args=(folder, words))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{' '.join(words)}: {(folder / LOG).read_text(encoding='utf-8')[-2000:]}")


def _command(folder: Path, words: Sequence[str]) -> None:
    """Becomes the command."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.chdir(folder)
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    sys.argv = ["fedcore", *words]
    runpy.run_module("fedcore", run_name="__main__")


def _training_rows(site: pd.DataFrame) -> pd.DataFrame:
    """Those that a site trains on: all but every fifth, as fedcore.data.tables divides them."""
    order = np.random.default_rng(0).permutation(len(site))
    return site.iloc[np.sort(order[np.arange(len(site)) % 5 != 0])]


def _pooled(rows: pd.DataFrame, new: pd.DataFrame, weight: str | None = None) -> Column:
    features = rows.drop(columns=TARGET)
    numbers = [name for name in features if pd.api.types.is_numeric_dtype(features[name])]
    others = [name for name in features if name not in numbers]
    preparation = make_column_transformer(
        (make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler()), numbers),
        (make_pipeline(SimpleImputer(strategy="constant", fill_value="none"), _one_hot()), others),
    )
    model = LogisticRegression(max_iter=5000, class_weight=weight)
    fitted: Pipeline = make_pipeline(preparation, model).fit(features, rows[TARGET])
    chances: Column = fitted.predict_proba(new.drop(columns=TARGET))[:, 1]
    return chances


def _one_hot() -> Any:
    return OneHotEncoder(handle_unknown="ignore")


def _logits(chances: Column) -> Column:
    inside = np.clip(chances, 1e-6, 1 - 1e-6)
    return np.asarray(np.log(inside / (1 - inside)))


def _chances(logits: Column) -> Column:
    return np.asarray(1 / (1 + np.exp(-logits)))


def _corrected(chances: Column, share: float) -> Column:
    """Of a model that took both classes for equally frequent."""
    return _chances(_logits(chances) + math.log(share / (1 - share)))


def _recalibrated(labels: Column, chances: Column, new: Column) -> Column:
    """Platt's a * logit + b for new chances, fitted to labels [n] and chances [n] as the sums of an AUC show them."""
    cells = np.minimum((chances * CELLS).astype(int), CELLS - 1)
    logits = _logits((cells + 0.5) / CELLS)[:, None]
    fitted = LogisticRegression(C=math.inf, max_iter=5000).fit(logits, labels)
    return _chances(fitted.coef_[0, 0] * _logits(new) + fitted.intercept_[0])


def _brier(labels: Column, chances: Column) -> float:
    return float(np.mean((labels - chances) ** 2))


def _ece(labels: Column, chances: Column) -> float:
    sums = calibration_error().count(torch.from_numpy(_logits(chances)), torch.from_numpy(labels.astype(float)))
    return calibration_error().value(sums)


def report(scores: Mapping[str, Sequence[Mapping[str, Score]]], seeds: Sequence[int]) -> Report:
    """A figure for each table: AUC of the app as it is written, less that of all rows in one place, over the seeds."""
    differences = {name: [one["linear"].auc - one["pooled"].auc for one in each] for name, each in scores.items()}
    figures = [
        Figure(name=f"auc_less_pooled_{name}", value=fmean(each), unit="AUC", aim=-MARGIN, at_least=True)
        for name, each in differences.items()
    ]
    first = {name: each[:ONLY_FIRST] for name, each in scores.items()}
    tables = [_aucs(scores, differences)]
    if "network" in next(iter(first.values()))[0]:
        tables += [_weights(first), _calibration(first)]
    return Report(
        benchmark="tables",
        figures=tuple(figures),
        tables=tuple(tables),
        notes=(
            f"means over the seeds {', '.join(map(str, seeds))}, class weights and calibration over the first "
            f"{min(ONLY_FIRST, len(seeds))}; sites have {', '.join(f'{share:.0%}' for share in SITES)} of the rows, in "
            "heart disease those of the four hospitals",
            "pooled: scikit-learn's LogisticRegression on all rows of all sites; the federation trains on four fifths "
            "of them (pooled, training rows) and chooses its best round by the rest",
            "the app is as fedcore new --csv writes it from the first site's table; linear is the default for classes",
            'class weights: class-weight = "balanced", against class_weight="balanced" corrected by the share of the '
            "positives, as the app does itself",
            "recalibrated: a * logit + b, fitted to the sums of the sites' test rows that their AUC is made of",
            *(f"{name}: {make.__doc__}" for name, make in MADE.items()),
        ),
    )


def _aucs(scores: Mapping[str, Sequence[Mapping[str, Score]]], differences: Mapping[str, Sequence[float]]) -> Table:
    methods = ("linear", "pooled", "pooled, training rows", "smallest site alone")
    rows = [
        (
            name,
            *(f"{fmean(one[method].auc for one in each):.4f}" for method in methods),
            f"{fmean(differences[name]):+.4f}",
            f"{min(differences[name]):+.4f}",
            f"{fmean(one['linear'].auc - one['pooled, training rows'].auc for one in each):+.4f}",
        )
        for name, each in scores.items()
    ]
    less = ("less pooled, mean", "worst seed", "less pooled on training rows, mean")
    return Table(title="AUC on new rows", header=("table", *methods, *less), rows=tuple(rows))


def _weights(scores: Mapping[str, Sequence[Mapping[str, Score]]]) -> Table:
    methods = ("linear", "linear, class weights", "pooled, class weights")
    rows = [
        (
            name,
            *(f"{fmean(one[method].auc for one in each):.4f}" for method in methods),
            *(f"{fmean(one[method].brier for one in each):.4f}" for method in methods),
        )
        for name, each in scores.items()
    ]
    header = ("table", *(f"AUC, {one}" for one in methods), *(f"Brier, {one}" for one in methods))
    return Table(title="Class weights", header=header, rows=tuple(rows))


def _calibration(scores: Mapping[str, Sequence[Mapping[str, Score]]]) -> Table:
    rows = []
    for name, each in scores.items():
        cells = [name]
        for kind in ("linear", "network"):
            of_kind = [one[kind] for one in each]
            figures = [(one.brier, one.recalibrated[0], one.ece, one.recalibrated[1]) for one in of_kind]
            cells += [f"{fmean(column):.4f}" for column in zip(*figures, strict=True)]
        rows.append((*cells, f"{fmean(one['pooled'].brier for one in each):.4f}"))
    columns = ("Brier", "Brier, recalibrated", "ece", "ece, recalibrated")
    header = ("table", *(f"{kind}: {one}" for kind in ("linear", "network") for one in columns), "pooled: Brier")
    return Table(title="Calibration on new rows", header=header, rows=tuple(rows))


if __name__ == "__main__":
    sys.exit(main())
