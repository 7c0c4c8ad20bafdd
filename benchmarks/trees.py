"""Boosted trees from secure sums, against XGBoost on the rows of all sites.

    python benchmarks/trees.py [--quick] [--json]

Made tables with missing values, whose rows lie at sites of unequal size. The federation is a simulation with all of
the masking; its model is exported and read by XGBoost, which predicts new rows. The peer is XGBoost's `hist` on all
rows: with the same bins, whose splits have to be the same, and with bins of its own, whose AUC has to be reached.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import xgboost
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from benchmarks.common import Figure, Report, Table, parser, run, say, sized
from fedcore import LocalJob, trees_app, trees_server
from fedcore.data import Split
from fedcore.flower.memory_app import load_app
from fedcore.flower.output import quiet_flower
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.trees import Cuts, Ensemble

FEATURES: Final = 10
NEW_ROWS: Final = 20_000
DEPTH: Final = 4
BINS: Final = 32

Rows = tuple[NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Of one table: the seed that draws it, rows of all sites, sites, trees."""

    seed: int = 1
    rows: int
    sites: int
    trees: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one table: AUC on new rows by method, splits that differ of how many, and seconds."""

    aucs: dict[str, float]
    differing: int
    splits: int
    seconds: float
    peer_seconds: float
    queries: int


def main() -> int:
    """The command line."""
    return run(measure, parser("Boosted trees from secure sums against XGBoost on all rows.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Each table once."""
    cases: tuple[Case, ...] = sized(
        arguments,
        smallest=(Case(rows=300, sites=3, trees=2),),
        quick=(Case(rows=2000, sites=3, trees=10),),
        whole=tuple(Case(seed=1 + (at % 5), rows=10_000, sites=3 if at < 5 else 10, trees=20) for at in range(6)),
    )
    outcomes = []
    for case in cases:
        outcome = outcome_of(case)
        say(f"{case}: {outcome}")
        outcomes.append(outcome)
    return report(cases, outcomes)


def drawn(rows: int, rng: np.random.Generator) -> Rows:
    """Features of several scales, a tenth of most columns missing, and a target that depends on pairs of them."""
    x = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    x[:, 0] = rng.integers(0, 5, rows)
    logits = 0.6 * (x[:, 0] - 2) + np.sin(2 * x[:, 1]) + x[:, 2] * x[:, 3] - 0.5 * x[:, 4] ** 2 + 0.5
    y = rng.random(rows) < 1 / (1 + np.exp(-logits))
    x[:, :-1][rng.random((rows, FEATURES - 1)) < 0.1] = np.nan
    return x, y.astype(np.float32)


def outcome_of(case: Case) -> Outcome:
    """The federation, and XGBoost on the same rows."""
    rng = np.random.default_rng(case.seed)
    (x, y), (new_x, new_y) = drawn(case.rows, rng), drawn(NEW_ROWS, rng)
    quiet_flower()
    started = time.perf_counter()
    ours, queries = federated(case, x, y, rng)
    seconds = time.perf_counter() - started
    exported = xgboost.Booster()
    exported.load_model(bytearray(json.dumps(ours.to_xgboost()), "utf-8"))
    names = list(ours.names)
    bins = _binned(ours, x)
    started = time.perf_counter()
    same = _xgboost(ours, bins, y, case.trees, max_bin=256)
    peer_seconds = time.perf_counter() - started
    pooled = _xgboost(ours, x, y, case.trees, max_bin=BINS)
    aucs = {
        "secure sums": float(roc_auc_score(new_y, exported.predict(xgboost.DMatrix(new_x, feature_names=names)))),
        "XGBoost, same bins": float(roc_auc_score(new_y, same.predict(xgboost.DMatrix(_binned(ours, new_x))))),
        "XGBoost, all rows": float(roc_auc_score(new_y, pooled.predict(xgboost.DMatrix(new_x)))),
    }
    differing, splits = differences(ours, same)
    return Outcome(
        aucs=aucs, differing=differing, splits=splits, seconds=seconds, peer_seconds=peer_seconds, queries=queries
    )


def federated(
    case: Case, x: NDArray[np.float32], y: NDArray[np.float32], rng: np.random.Generator
) -> tuple[Ensemble, int]:
    """The model of a simulated run over sites of unequal size, and how many sums it took."""
    shares = np.arange(1, case.sites + 1) / sum(range(1, case.sites + 1))
    owner = rng.choice(case.sites, case.rows, p=shares)
    sites = [Split(x=x[owner == site], y=y[owner == site].astype(np.int64)) for site in range(case.sites)]

    def data(job: LocalJob) -> tuple[Split, Split]:
        part = sites[int(job.node["partition-id"])]
        return part, part

    bounds = {**{f"x{index}": (-5.0, 5.0) for index in range(FEATURES)}, "y": (0.0, 1.0)}
    app = trees_app(data=data, bounds=lambda config: bounds)
    config = {"num-server-rounds": case.trees, "max-depth": DEPTH, "bins": BINS, "test-every": 0}
    events: list[Any] = []
    with load_app((app, trees_server(app)), config) as loaded:
        simulation = Simulation(
            app=loaded.app,
            clients=case.sites,
            run_config=loaded.app.run_config,
            settings=JobSettings(),
            emit=events.append,
        )
        state = simulation.run().state
    if state is None:
        raise RuntimeError("the run ended without a model")
    queries = sum(event.kind == "exchange-done" for event in events)
    return Ensemble.from_arrays({name: state[name] for name in state}), queries


def _binned(ours: Ensemble, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The numbers of the bins of each value, from 0 on for each feature."""
    bins = (ours.cuts.bins_of(x) - ours.cuts.starts[:-1]).astype(np.float32)
    bins[np.isnan(x)] = np.nan
    return bins


def _xgboost(
    ours: Ensemble, x: NDArray[np.float32], y: NDArray[np.float32], trees: int, max_bin: int
) -> xgboost.Booster:
    parameters = {
        "tree_method": "hist", "objective": ours.settings.objective, "max_depth": DEPTH, "max_bin": max_bin,
        "base_score": ours.base_score,
    }  # fmt: skip
    return xgboost.train(parameters, xgboost.QuantileDMatrix(x, y, max_bin=max_bin), trees)


def differences(ours: Ensemble, peer: xgboost.Booster) -> tuple[int, int]:
    """Nodes whose feature, bin or direction of missing values is another one, and how many nodes split."""
    differing = splits = 0
    theirs = json.loads(peer.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    for tree, other in zip(ours.to_xgboost()["learner"]["gradient_booster"]["model"]["trees"], theirs, strict=True):
        mine, their = _splits(tree, ours.cuts, of_bins=False), _splits(other, ours.cuts, of_bins=True)
        differing += sum(mine.get(node) != their.get(node) for node in mine.keys() | their.keys())
        splits += len(their)
    return differing, splits


def _splits(tree: dict[str, Any], cuts: Cuts, *, of_bins: bool) -> dict[int, tuple[int, int, bool]]:
    """Feature, first bin to the right, and direction of each split, by the node's place in a heap.

    A threshold above all values, which parts those from the missing ones, is one whatever its number.

    of_bins: whether thresholds are of numbers of bins.
    """
    places, splits = {0: 0}, dict[int, tuple[int, int, bool]]()
    for node, left in enumerate(tree["left_children"]):
        if left < 0:
            continue
        place = places[node]
        places[left], places[tree["right_children"][node]] = 2 * place + 1, 2 * place + 2
        feature, threshold = tree["split_indices"][node], tree["split_conditions"][node]
        edges = cuts.of_feature(feature)
        first = int(np.ceil(threshold)) if of_bins else int(np.searchsorted(edges, np.float32(threshold))) + 1
        first = min(first, len(edges))
        splits[place] = (feature, first, bool(tree["default_left"][node]))
    return splits


def report(cases: tuple[Case, ...], outcomes: list[Outcome]) -> Report:
    """The mean AUC and the worst of all tables, and a row for each."""
    lost = [one.aucs["secure sums"] - one.aucs["XGBoost, all rows"] for one in outcomes]
    figures = (
        Figure(name="auc_minus_pooled", value=fmean(lost), unit="AUC", aim=-0.001, at_least=True),
        Figure(name="splits_that_differ", value=sum(one.differing for one in outcomes), unit="splits", aim=0),
        Figure(name="seconds_over_xgboost", value=max(one.seconds / one.peer_seconds for one in outcomes), aim=1000),
    )
    rows = []
    for case, one in zip(cases, outcomes, strict=True):
        sizes = f"{case.rows:,}", str(case.sites), str(case.trees), str(one.queries)
        aucs = (f"{auc:.4f}" for auc in one.aucs.values())
        seconds = f"{one.seconds:.1f}", f"{one.seconds / case.trees:.2f}", f"{one.peer_seconds:.2f}"
        rows.append((*sizes, *aucs, f"{one.differing} of {one.splits}", *seconds))
    header = (
        "rows", "sites", "trees", "sums", "AUC", "XGBoost, same bins", "XGBoost, own bins", "splits that differ",
        "seconds",
        "seconds a tree", "seconds of XGBoost",
    )  # fmt: skip
    return Report(
        benchmark="trees",
        figures=figures,
        tables=(Table(title="Boosted trees", header=header, rows=tuple(rows)),),
        notes=(
            f"depth {DEPTH}, {BINS} bins, {FEATURES} features, a tenth of the values missing; AUC on {NEW_ROWS:,} rows "
            "of which none was trained on",
            "seconds are of a simulation with all masking, of all sites and the server on one machine; splits are "
            "compared with XGBoost on the same bins, AUC with XGBoost on bins of its own",
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
