"""The partitioners of flwr-datasets (the extra `flower-datasets`) as rules of `partition`.

    flower:DirichletPartitioner:alpha=0.5,self_balancing=true
    flower:PathologicalPartitioner:num_classes_per_partition=2
    flower:ExponentialPartitioner

They know one table and no halves, so training and test rows are shuffled together, divided, and parted again: a
client's test rows are then as its training rows are. Nothing is downloaded: the table has labels and row numbers, no
features.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.data.types import Integers, Split
from fedcore.errors import ConfigurationError, DataError, UnknownKey

if TYPE_CHECKING:
    from types import ModuleType

_LABEL, _ROW = "label", "row"


def flower_partition(
    text: str, train: Split, test: Split, *, clients: int, seed: int
) -> tuple[list[Integers], list[Integers]]:
    """Rows of each client in the training half and in the test half.

    Raises ConfigurationError if the extra is missing, or for a name or a key that it does not have; DataError if
    the partitioner leaves rows to nobody.

    Args:
        text: NAME, or NAME:KEY=VALUE,...
    """
    name, _, options = text.partition(":")
    partitioner = _make(name, _values(options), clients, seed)
    order = np.random.default_rng(seed).permutation(len(train) + len(test))
    partitioner.dataset = _table(np.concatenate([train.y, test.y])[order], order)
    try:
        parts = [np.asarray(partitioner.load_partition(client)[_ROW], np.int64) for client in range(clients)]
    except ValueError as error:
        raise DataError(f"{name} cannot divide these data among {clients} clients: {error}") from None
    assigned = sum(len(part) for part in parts)
    if assigned != len(order):
        raise DataError(
            f"{name} leaves {len(order) - assigned} of {len(order)} examples to no client; set other values"
        )
    return [part[part < len(train)] for part in parts], [part[part >= len(train)] - len(train) for part in parts]


def _make(name: str, values: Mapping[str, Any], clients: int, seed: int) -> Any:
    module = _partitioners()
    kinds = {one: getattr(module, one) for one in module.__all__}
    usable = {one: kind for one, kind in kinds.items() if "num_partitions" in inspect.signature(kind).parameters}
    if name not in usable:
        raise UnknownKey(name, usable, "the partitioners of flwr-datasets that take a number of clients")
    ours = {"num_partitions": clients, "partition_by": _LABEL, "seed": seed}
    takes = inspect.signature(usable[name]).parameters
    for key in values:
        if key not in takes or key in ours:
            raise UnknownKey(key, takes.keys() - ours.keys(), name)
    try:
        return usable[name](**{key: value for key, value in ours.items() if key in takes}, **values)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"partition flower:{name} does not work: {error}", check="partitioner") from None


def _values(text: str) -> dict[str, Any]:
    """KEY=VALUE,... with numbers, true and false as in JSON, and everything else as text."""
    values = {}
    for pair in filter(None, text.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigurationError(f"{pair!r} is no KEY=VALUE, as in flower:DirichletPartitioner:alpha=0.5")
        try:
            values[key.strip()] = json.loads(value)
        except ValueError:
            values[key.strip()] = value
    return values


def _partitioners() -> ModuleType:
    try:
        from flwr_datasets import partitioner
    except ImportError as error:
        raise ConfigurationError(
            f"Flower's partitioners come with an extra: pip install 'fedcore[flower-datasets]' ({error})",
            check="not-installed",
        ) from None
    module: ModuleType = partitioner
    return module


def _table(labels: Integers, rows: Integers) -> Any:
    from datasets import Dataset

    if labels.ndim != 1:
        raise ConfigurationError("this data set has no class for each example: use iid or natural")
    return Dataset.from_dict({_LABEL: labels.tolist(), _ROW: rows.tolist()})
