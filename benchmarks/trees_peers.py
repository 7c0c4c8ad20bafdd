"""What benchmarks/trees.py measures by: XGBoost on all rows and at each site alone, and Flower's bagging."""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import fmean
from typing import Any, Final

import numpy as np
import xgboost
from flwr.serverapp.strategy.strategy_utils import aggregate_bagging
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from benchmarks.trees_tables import DividedTable, Floats
from fedcore.trees import Ensemble

RATE: Final = 0.3


def parameters(table: DividedTable, depth: int, bins: int, **others: Any) -> dict[str, Any]:
    """Of XGBoost, as the federation has them."""
    classes = {"num_class": table.classes} if table.classes else {}
    return {
        "tree_method": "hist", "objective": table.objective, "max_depth": depth, "max_bin": bins, "eta": RATE,
        **classes, **others,
    }  # fmt: skip


def auc(table: DividedTable, chances: NDArray[Any]) -> float:
    """Area under the ROC curve on the new rows; of several classes the mean over each against the others."""
    return float(roc_auc_score(table.new_y, chances, **({"multi_class": "ovr"} if table.classes else {})))


def auc_of(table: DividedTable, booster: xgboost.Booster) -> float:
    """Of a model on the new rows as they are."""
    return auc(table, booster.predict(xgboost.DMatrix(table.new_x, feature_names=booster.feature_names)))


def pooled(table: DividedTable, depth: int, bins: int, trees: int) -> xgboost.Booster:
    """All rows in one place, with XGBoost's own bins."""
    rows = xgboost.QuantileDMatrix(table.x, table.y, max_bin=bins)
    return xgboost.train(parameters(table, depth, bins), rows, trees)


def alone(table: DividedTable, depth: int, bins: int, trees: int) -> float:
    """The mean AUC of the sites' own models; one that has rows of one class alone knows nothing, which is a half."""
    figures = []
    for site in range(table.sites):
        own = table.of_site(site)
        if len(np.unique(own.y)) < 2:
            figures.append(0.5)
            continue
        rows = xgboost.QuantileDMatrix(own.x, own.y, max_bin=bins)
        figures.append(auc_of(table, xgboost.train(parameters(table, depth, bins), rows, trees)))
    return fmean(figures)


def bagging(table: DividedTable, depth: int, bins: int, rounds: int) -> float:
    """Flower's FedXgbBagging: in each round every site adds a tree to the model, by its own `aggregate_bagging`.

    The better of two learning rates, the one of the others and that divided by the number of sites, which are the two
    of Flower's examples. Sites have to be of two classes: the function takes a round for one tree a site.
    """
    return max(_bagged(table, depth, bins, rounds, rate) for rate in (RATE, RATE / table.sites))


def _bagged(table: DividedTable, depth: int, bins: int, rounds: int, rate: float) -> float:
    settings = parameters(table, depth, bins, eta=rate, base_score=0.5)
    sites = []
    for site in range(table.sites):
        own = table.of_site(site)
        sites.append(xgboost.DMatrix(own.x, own.y))
    model = b""
    for _ in range(rounds):
        updates = [_local_tree(settings, rows, model) for rows in sites]
        for update in updates:
            model = aggregate_bagging(model, update)
    booster = xgboost.Booster()
    booster.load_model(bytearray(model))
    return auc_of(table, booster)


def _local_tree(settings: dict[str, Any], rows: xgboost.DMatrix, model: bytes) -> bytes:
    """What a client of Flower's example sends: the tree that it adds."""
    if not model:
        return bytes(xgboost.train(settings, rows, 1).save_raw("json"))
    booster = xgboost.Booster(settings)
    booster.load_model(bytearray(model))
    booster.update(rows, booster.num_boosted_rounds())
    rounds = booster.num_boosted_rounds()
    return bytes(booster[rounds - 1 : rounds].save_raw("json"))


def binned(ours: Ensemble, x: Floats) -> Floats:
    """The numbers of the bins of each value, from 0 on for each feature."""
    bins = (ours.cuts.bins_of(x) - ours.cuts.starts[:-1]).astype(np.float32)
    bins[np.isnan(x)] = np.nan
    return bins


def differences(ours: Ensemble, table: DividedTable, depth: int) -> tuple[int, int, int]:
    """How many splits are others than XGBoost's, how many of these are ties, and how many splits there are.

    Each tree of XGBoost grows on the same bins, from the margins of our trees before it: what differs in one does not
    make the next differ. Below a node that differs nothing is compared. A tie is a node whose two splits have gains
    that are equal to a millionth, as far as float32 tells.
    """
    bins = binned(ours, table.x)
    rows = xgboost.QuantileDMatrix(bins, table.y, max_bin=256)
    settings = parameters(table, depth, 256)
    groups = ours.settings.groups
    margins = ours.first_margins(len(table.x))
    differing = tied = splits = 0
    for first in range(0, len(ours.trees), groups):
        rows.set_base_margin(margins.reshape(len(margins), -1).squeeze())
        theirs = json.loads(xgboost.train(settings, rows, 1).save_raw("json"))
        trees = theirs["learner"]["gradient_booster"]["model"]["trees"]
        for number, tree in enumerate(trees):
            mine = _splits(ours.trees[first + number].as_xgboost(0, len(ours.names)), ours, of_bins=False)
            their = _splits(tree, ours, of_bins=True)
            splits += len(their)
            for node in _first_differences(mine, their):
                differing += 1
                tied += _is_tie(mine.get(node), their.get(node))
        part = ours.trees[: first + groups]
        grown = Ensemble(**{**_fields(ours), "trees": part})
        grown.add_margins(margins, table.x, first)
    return differing, tied, splits


def _fields(ours: Ensemble) -> dict[str, Any]:
    return {name: getattr(ours, name) for name in ours.__dataclass_fields__}


HeapSplit = tuple[tuple[int, int, bool], float]
"""Feature, first bin to the right and direction of missing values, and the gain."""


def _first_differences(mine: dict[int, HeapSplit], theirs: dict[int, HeapSplit]) -> Iterator[int]:
    """Nodes that differ, below none that does."""
    differing: set[int] = set()
    for node in sorted(mine.keys() | theirs.keys()):
        parents = {(node + 1 >> up) - 1 for up in range(1, (node + 1).bit_length())}
        one, other = mine.get(node), theirs.get(node)
        if not parents & differing and (one and one[0]) != (other and other[0]):
            differing.add(node)
            yield node


def _is_tie(mine: HeapSplit | None, theirs: HeapSplit | None) -> bool:
    gains = [split[1] if split else 0.0 for split in (mine, theirs)]
    return abs(gains[0] - gains[1]) <= 1e-6 * max(1.0, *map(abs, gains))


def _splits(tree: dict[str, Any], ours: Ensemble, *, of_bins: bool) -> dict[int, HeapSplit]:
    """Each split by the node's place in a heap.

    A threshold above all values, which parts those from the missing ones, is one whatever its number.

    of_bins: whether thresholds are of numbers of bins.
    """
    places, splits = {0: 0}, dict[int, HeapSplit]()
    for node, left in enumerate(tree["left_children"]):
        if left < 0:
            continue
        place = places[node]
        places[left], places[tree["right_children"][node]] = 2 * place + 1, 2 * place + 2
        feature, threshold = tree["split_indices"][node], tree["split_conditions"][node]
        edges = ours.cuts.of_feature(feature)
        first = int(np.ceil(threshold)) if of_bins else int(np.searchsorted(edges, np.float32(threshold))) + 1
        split = (feature, min(first, len(edges)), bool(tree["default_left"][node]))
        splits[place] = split, float(tree["loss_changes"][node])
    return splits
