"""Boosted trees from secure sums, against XGBoost on the rows of all sites, each site alone, and Flower's bagging.

    python benchmarks/trees.py [--data-dir DATA] [--quick] [--json]

Heart disease at four hospitals (with --data-dir), scikit-learn's digits, and made tables with missing values, whose
rows lie at sites of unequal size and unequal shares of positive rows. The federation is a simulation with all of the
masking; its model is exported and read by XGBoost, which predicts new rows. A further run has clients that drop out,
so that sums are asked for again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import xgboost

from benchmarks.common import Figure, Report, Table, data_parser, keep, run, say, sized
from benchmarks.trees_peers import RATE, alone, auc_of, bagging, differences, pooled
from benchmarks.trees_tables import DividedTable, digits, has_hearts, hearts, made
from fedcore import LocalJob, trees_app, trees_server
from fedcore.data import Split
from fedcore.flower.memory_app import load_app
from fedcore.flower.output import quiet_flower
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.trees import Ensemble

DEPTH: Final = 4
BINS: Final = 32
DROP: Final = 0.04
"""Probability that a client drops out of a sum, in the run that has such clients."""
_BAGGED_SITES: Final = 10
"""Bagging a model of more sites takes minutes: it has a tree of each site in every round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Of one table: its name, the seed that draws it, trees, and for a made one its rows and sites."""

    name: str = "made"
    seed: int = 1
    trees: int = 20
    rows: int = 0
    sites: int = 0

    def table(self) -> DividedTable:
        """Draw it."""
        match self.name:
            case "heart disease":
                return hearts(self.seed)
            case "digits":
                return digits(self.seed)
        return made(self.rows, self.sites, self.seed)

    def __str__(self) -> str:
        """In a few words."""
        return f"{self.name}, seed {self.seed}" if self.name != "made" else f"made, {self.rows:,} rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """A federation's model, and what it took. bytes_a_site: sent and received by one site, mean over all."""

    model: Ensemble
    seconds: float
    queries: int
    bytes_a_site: float
    events: Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one table: AUC on new rows by method, splits that differ, ties among them, of how many; seconds and bytes."""

    rows: int
    sites: int
    aucs: dict[str, float]
    differing: int
    tied: int
    splits: int
    grown: Grown
    peer_seconds: float


def main() -> int:
    """The command line."""
    return run(measure, data_parser("Boosted trees from secure sums against XGBoost on all rows.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Each table once, and one again with clients that drop out."""
    hospitals = tuple(Case(name="heart disease", seed=seed) for seed in range(1, 5) if has_hearts())
    cases: tuple[Case, ...] = sized(
        arguments,
        smallest=(Case(rows=300, sites=3, trees=2), Case(name="digits", trees=1)),
        quick=(Case(rows=2000, sites=3, trees=10), Case(name="digits", trees=5)),
        whole=(
            *hospitals[:1],
            Case(rows=10_000, sites=3, seed=3),
            *(Case(rows=1_000_000, sites=sites, seed=sites, trees=5) for sites in (3, 10)),
            Case(rows=10_000, sites=10, seed=10),
            Case(name="digits", trees=5),
            *hospitals[1:],
            *(Case(rows=rows, sites=50, seed=50, trees=5) for rows in (10_000, 1_000_000)),
        ),
    )
    quiet_flower()
    dropped = interrupted(cases[0] if arguments.smallest else Case(rows=2000, sites=3, trees=5))
    outcomes: list[Outcome] = []
    for case in cases:
        outcomes.append(outcome_of(case))
        say(f"{case}: {outcomes[-1].aucs}, {outcomes[-1].differing} of {outcomes[-1].splits} splits differ")
        keep(report(cases, outcomes, dropped), arguments)
    return report(cases, outcomes, dropped)


def outcome_of(case: Case) -> Outcome:
    """The federation, and its peers on the same rows."""
    table = case.table()
    grown = federated(table, case.trees)
    say(f"{case}, {table.sites} sites: {grown.seconds:.1f} s for {case.trees} rounds, {grown.queries} sums")
    exported = xgboost.Booster()
    exported.load_model(bytearray(json.dumps(grown.model.to_xgboost()), "utf-8"))
    started = time.perf_counter()
    of_all = pooled(table, DEPTH, BINS, case.trees)
    peer_seconds = time.perf_counter() - started
    aucs = {
        "secure sums": auc_of(table, exported),
        "XGBoost, all rows": auc_of(table, of_all),
        "each site alone": alone(table, DEPTH, BINS, case.trees),
    }
    if not table.classes and table.sites <= _BAGGED_SITES:
        aucs["bagging"] = bagging(table, DEPTH, BINS, case.trees)
    differing, tied, splits = differences(grown.model, table, DEPTH)
    return Outcome(
        rows=len(table.x), sites=table.sites, aucs=aucs, differing=differing, tied=tied, splits=splits, grown=grown,
        peer_seconds=peer_seconds,
    )  # fmt: skip


def interrupted(case: Case) -> tuple[Grown, bool]:
    """A run whose clients drop out now and then, and whether its model is that of a run without them."""
    table = case.table()
    whole, grown = federated(table, case.trees), federated(table, case.trees, drop=DROP)
    arrays = whole.model.to_arrays(), grown.model.to_arrays()
    return grown, all((arrays[0][name] == arrays[1][name]).all() for name in arrays[0])


def federated(table: DividedTable, trees: int, drop: float = 0.0) -> Grown:
    """The model of a simulated run over the sites.

    drop: the probability that a client drops out of a sum.
    """
    sites = [table.of_site(site) for site in range(table.sites)]
    bounds = table.bounds

    def data(job: LocalJob) -> tuple[Split, Split]:
        part = sites[int(job.node["partition-id"])]
        return part, part

    app = trees_app(data=data, bounds=lambda config: bounds)
    config: dict[str, Any] = {
        "num-server-rounds": trees, "max-depth": DEPTH, "bins": BINS, "learning-rate": RATE, "test-every": 0,
        "objective": table.objective, "min-nodes": table.sites,
        **({"num-class": table.classes} if table.classes else {}),
    }  # fmt: skip
    events: list[Any] = []
    started = time.perf_counter()
    with load_app((app, trees_server(app)), config) as loaded:
        simulation = Simulation(
            app=loaded.app,
            clients=table.sites,
            run_config=loaded.app.run_config,
            settings=JobSettings(),
            emit=events.append,
            drop=drop,
            seed=1,
        )
        state = simulation.run().state
    seconds = time.perf_counter() - started
    if state is None:
        raise RuntimeError("the run ended without a model")
    done = [event for event in events if event.kind == "exchange-done"]
    sent = sum(sum(event.bytes_up.values()) + sum(event.bytes_down.values()) for event in done)
    return Grown(
        model=Ensemble.from_arrays({name: state[name] for name in state}),
        seconds=seconds,
        queries=len(done),
        bytes_a_site=sent / table.sites,
        events=Counter(event.kind for event in events),
    )


def report(cases: Sequence[Case], outcomes: Sequence[Outcome], dropped: tuple[Grown, bool]) -> Report:
    """The mean AUC and the worst of all tables, and a row for each."""
    lost = [one.aucs["secure sums"] - one.aucs["XGBoost, all rows"] for one in outcomes]
    gained = [one.aucs["secure sums"] - one.aucs["bagging"] for one in outcomes if "bagging" in one.aucs]
    figures = [
        Figure(name="auc_minus_pooled", value=fmean(lost), unit="AUC", aim=-0.001, at_least=True),
        Figure(
            name="splits_that_differ", value=sum(one.differing - one.tied for one in outcomes), unit="splits", aim=0
        ),
        Figure(name="ties_that_differ", value=sum(one.tied for one in outcomes), unit="splits", aim=0),
        Figure(
            name="seconds_over_xgboost", value=max(one.grown.seconds / one.peer_seconds for one in outcomes), aim=1000
        ),
    ]
    if gained:
        figures.append(Figure(name="auc_minus_bagging", value=fmean(gained), unit="AUC", aim=0.0, at_least=True))
    notes = [
        f"depth {DEPTH}, {BINS} bins, learning rate {RATE}; AUC on rows of which none was trained on, of several "
        "classes the mean over each against the others; bagging has as many rounds, with a tree of each site in each",
        "seconds are of a simulation with all masking, of all sites and the server on one machine; splits are compared "
        "with XGBoost on the same bins, AUC with XGBoost on bins of its own",
        "splits are compared tree by tree, each of XGBoost's grown from the margins of the federation's trees before "
        "it; below a node that differs nothing is compared; ties are nodes whose two splits have the same gain to a "
        "millionth, which the rounding of gradients and of float32 decides",
    ]
    grown, same = dropped
    figures.append(Figure(name="models_that_differ_after_dropouts", value=float(not same), unit="models", aim=0))
    notes.append(
        f"with clients that drop out of a sum with probability {DROP}: {grown.events['dropped']} dropped out, "
        f"{grown.queries} sums, {grown.seconds:.1f} s, {'the same model' if same else 'another model'}"
    )
    if len(outcomes) < len(cases):
        notes.append(f"the first {len(outcomes)} of {len(cases)} tables")
    header = (
        "table", "rows", "sites", "rounds", "sums", "AUC", "XGBoost, all rows", "each site alone", "bagging",
        "splits that differ", "ties", "seconds", "seconds a round", "seconds of XGBoost", "MB a site",
    )  # fmt: skip
    return Report(
        benchmark="trees",
        figures=tuple(figures),
        tables=(Table(title="Boosted trees", header=header, rows=tuple(map(_row, cases, outcomes))),),
        notes=tuple(notes),
    )


def _row(case: Case, one: Outcome) -> tuple[str, ...]:
    sizes = str(case), f"{one.rows:,}", str(one.sites), str(case.trees), str(one.grown.queries)
    names = ("secure sums", "XGBoost, all rows", "each site alone", "bagging")
    aucs = (f"{one.aucs[name]:.4f}" if name in one.aucs else "-" for name in names)
    splits = f"{one.differing} of {one.splits}", str(one.tied)
    seconds = f"{one.grown.seconds:.1f}", f"{one.grown.seconds / case.trees:.2f}", f"{one.peer_seconds:.2f}"
    return (*sizes, *aucs, *splits, *seconds, f"{one.grown.bytes_a_site / 1e6:.2f}")


if __name__ == "__main__":
    sys.exit(main())
