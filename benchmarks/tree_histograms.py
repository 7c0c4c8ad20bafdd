"""What the sums of boosted trees tell of single rows, under several owners' policies.

    python benchmarks/tree_histograms.py [--data-dir DATA] [--quick] [--json]

The server of a federation gets, for each node of each tree, the sums of gradients and hessians by feature and bin. A
row that is alone in a cell is told: its target by the sign of the gradient, the bin, and all conditions of the node.
For rows of heart disease (with --data-dir) and of scikit-learn's breast cancer this counts such rows after one tree
and after several, also with half of the features, drawn for each tree. A server that lies chooses conditions
itself: of rows whose values it knows it needs the target alone, and this counts those that it can single out within
the depth that the owners allow.

Two runs over tables that differ in one row are compared as well, and the AUC of trees whose sums have noise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

from benchmarks.common import Figure, Report, Table, data_parser, run, say, sized
from benchmarks.trees_differences import told_by_difference
from benchmarks.trees_noise import EPSILONS, auc_with_noise
from benchmarks.trees_tables import has_hearts, hearts, made
from fedcore.trees import BoostingSettings, Cuts
from fedcore.trees.growth import TreeGrowth
from fedcore.trees.histograms import Scale, as_integers, gradients, histogram_sums

BINS: Final = 32
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """A policy's two keys, and the settings of the run that asks for as much as it allows.

    depth: `max-tree-depth`. rows: `min-rows-in-node`.
    """

    name: str
    depth: int
    rows: int

    @property
    def settings(self) -> BoostingSettings:
        """A row's hessian is 0.25 at most."""
        return BoostingSettings(max_depth=self.depth, min_child_weight=self.rows * 0.25)


STOCK: Final = Owners(name="stock", depth=12, rows=1)
USUAL: Final = Owners(name="usual", depth=6, rows=4)
"""What XGBoost's defaults need."""
STRICT: Final = Owners(name="strict", depth=3, rows=20)
ALL_OWNERS: Final = (STOCK, USUAL, STRICT)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of all sites: features [n, d], targets [n], bins [n, d]."""

    name: str
    x: Floats
    y: Floats
    cuts: Cuts
    bins: NDArray[np.int32]

    @classmethod
    def of(cls, name: str, x: NDArray[Any], y: NDArray[Any]) -> Rows:
        """Bins at quantiles, as the federation makes them."""
        x = x.astype(np.float32)
        edges = [np.unique(np.nanquantile(column, np.linspace(0, 1, BINS + 1)[1:-1])) for column in x.T]
        cuts = Cuts.of([np.append(edge, np.float32(3e38)) for edge in edges])
        return cls(name, x, y.astype(np.float32), cuts, cuts.bins_of(x))


@dataclass(frozen=True, slots=True)
class Told:
    """rows: which are alone in some cell [n]. smallest: the fewest rows of a node that was asked about."""

    rows: Bools
    smallest: int


def main() -> int:
    """The command line."""
    return run(measure, data_parser("What the sums of boosted trees tell of single rows.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Every table under every policy."""
    trees: int = sized(arguments, smallest=2, quick=5, whole=20)
    cancer = load_breast_cancer()
    tables = [Rows.of("breast cancer", cancer.data, cancer.target)]
    if has_hearts():
        table = hearts(1)
        tables.append(Rows.of("heart disease", table.x, table.y))
    lines: list[tuple[str, ...]] = []
    figures: list[Figure] = []
    for rows in tables:
        label, shares = rows.name.replace(" ", "_"), dict[str, float]()
        apart = told_by_difference(rows.x, rows.y, sized(arguments, smallest=2, quick=20, whole=100))
        say(f"{rows.name}: {apart:.3f} of the rows told by two runs that differ in them")
        figures.append(Figure(name=f"told_by_two_runs_{label}", value=apart, aim=0.0))
        for owners in ALL_OWNERS:
            first = told(rows, owners, trees=1)
            many = told(rows, owners, trees=trees)
            drawn = told(rows, owners, trees=trees, colsample=0.5)
            lied = singled_out(rows, owners.depth, sized(arguments, smallest=20, quick=100, whole=300))
            say(f"{rows.name}, {owners.name}: {first.rows.mean():.3f} of the rows alone after one tree")
            lines.append(
                (
                    rows.name, owners.name, str(owners.depth), str(owners.rows), str(first.smallest),
                    *(f"{one.rows.mean():.3f}" for one in (first, many, drawn)), f"{lied:.3f}",
                )
            )  # fmt: skip
            if owners is STRICT:
                figures.append(
                    Figure(name=f"smallest_node_{label}", value=min(one.smallest for one in (first, many, drawn)),
                           unit="rows", aim=owners.rows, at_least=True)
                )  # fmt: skip
            shares[owners.name] = float(many.rows.mean())
        ratio = shares[STRICT.name] / max(shares[STOCK.name], 1e-9)
        figures.append(Figure(name=f"alone_strict_over_stock_{label}", value=ratio, aim=0.5))
    header = (
        "rows", "owners", "max-tree-depth", "min-rows-in-node", "smallest node", "alone after 1 tree",
        f"after {trees}", f"after {trees} of half the features", "singled out by a server that lies",
    )  # fmt: skip
    noised, costs = noise(arguments)
    return Report(
        benchmark="tree_histograms", figures=(*figures, *costs),
        tables=(Table(title="Shares of the rows", header=header, rows=tuple(lines)), noised),
        notes=(
            "no sum says at which site a row is; the sums of one run over other clients are refused (differencing)",
            "singled out: by a server that knows the row's values and chooses the conditions of one path greedily, "
            "of rows drawn at random",
            "told by two runs: the target, and every value to a thousandth of its bounds, of a row that is in one of "
            "two runs alone, by the answers from which bins are made; under every policy and for every seed",
        ),
    )  # fmt: skip


def noise(arguments: argparse.Namespace) -> tuple[Table, list[Figure]]:
    """AUC on new rows against the epsilon of each row, for few and shallow trees, and what epsilon 8 costs of it."""
    tables = {"made, 1e4 rows": made(sized(arguments, smallest=300, quick=10_000, whole=10_000), 3, 3)}
    if has_hearts():
        tables["heart disease"] = hearts(1)
    draws, lines, costs = sized(arguments, smallest=1, quick=3, whole=10), [], []
    for name, table in tables.items():
        exact = auc_with_noise(table, 0.0, draws)
        aucs = {epsilon: auc_with_noise(table, epsilon, draws) for epsilon in EPSILONS}
        say(f"{name}: AUC {exact:.3f} without noise, {aucs}")
        lines.append((name, str(len(table.y)), f"{exact:.3f}", *(f"{auc:.3f}" for auc in aucs.values())))
        label = name.split(",")[0].replace(" ", "_")
        costs.append(Figure(name=f"auc_noise_costs_{label}", value=exact - aucs[8.0], aim=0.05))
    header = ("table", "rows", "no noise", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS))
    return Table(title="AUC on new rows, 10 trees of depth 2", header=header, rows=tuple(lines)), costs


def told(rows: Rows, owners: Owners, *, trees: int, colsample: float = 1.0) -> Told:
    """What an honest server gets while it grows trees, both of two siblings being known by their parent."""
    settings, rng = owners.settings, np.random.default_rng(7)
    alone, smallest = np.zeros(len(rows.y), bool), len(rows.y)
    margins = np.full(len(rows.y), np.log(rows.y.mean() / (1 - rows.y.mean())), np.float32)
    scale = Scale.of(float(len(rows.y)), float(len(rows.y)))
    d = rows.cuts.features
    for _ in range(trees):
        g, h = gradients(settings.objective, margins, rows.y)
        values = as_integers(g, scale.gradient_bits), as_integers(h, scale.hessian_bits)
        features = None if colsample == 1.0 else np.sort(rng.choice(d, max(1, round(colsample * d)), replace=False))
        own = np.arange(d) if features is None else features
        cuts = rows.cuts if features is None else rows.cuts.only(features)
        bins = cuts.bins_of(rows.x[:, own])
        growth = TreeGrowth(settings, rows.cuts, scale, np.array([v.sum() for v in values]), features)
        while growth.questions:
            position = growth.tree.leaves_of(rows.x)
            nodes = _level(growth)
            for node in nodes:
                members = np.flatnonzero(position == node)
                smallest = min(smallest, len(members))
                alone[members[_alone(bins[members])]] = True
            growth.answer(histogram_sums(bins, position, np.array(growth.questions), values, cuts.bins))
        margins += growth.tree.margins(rows.x)
    return Told(alone, smallest)


def _level(growth: TreeGrowth) -> list[int]:
    """The nodes whose histograms are known after the next answer."""
    nodes = growth.questions
    return nodes if nodes == [0] else [one for node in nodes for one in (node, node + 1 if node % 2 else node - 1)]


def _alone(bins: NDArray[np.int32]) -> Bools:
    """Rows that share the bin of some feature with no other row, [rows]."""
    found = np.zeros(len(bins), bool)
    for column in bins.T:
        values, counts = np.unique(column, return_counts=True)
        found |= (counts == 1)[np.searchsorted(values, column)] & (column >= 0)
    return found


def singled_out(rows: Rows, depth: int, count: int) -> float:
    """Of rows drawn at random the share that a path of so many conditions, and a cell at its end, leaves alone."""
    rng = np.random.default_rng(3)
    drawn = rng.choice(len(rows.y), min(count, len(rows.y)), replace=False)
    return float(np.mean([_is_singled_out(rows.bins, row, depth) for row in drawn]))


def _is_singled_out(bins: NDArray[np.int32], row: int, depth: int) -> bool:
    left = np.arange(len(bins))
    for _ in range(depth):
        same = bins[left] == bins[row]
        if (same.sum(axis=0) == 1).any():  # a cell of this node holds the row alone
            return True
        # A condition keeps one side of a cut: the smaller side that the row is on.
        sides = list(_sides(bins[left], bins[row]))
        left = left[min(sides, key=lambda side: int(side.sum()))]
        if len(left) == 1:
            return True
    return bool((bins[left] == bins[row]).sum(axis=0).min() == 1)


def _sides(bins: NDArray[np.int32], own: NDArray[np.int32]) -> Iterator[Bools]:
    for feature, value in enumerate(own):
        if value >= 0:
            yield bins[:, feature] <= value
            yield bins[:, feature] >= value


if __name__ == "__main__":
    sys.exit(main())
