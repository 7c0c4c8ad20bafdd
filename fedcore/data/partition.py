"""Partitions of rows among clients: IID, Dirichlet, pathological shards, k labels, unequal sizes, natural.

Every partitioner is a pure function. It takes the training half and the test half and divides both
by one rule, so that each client is tested on data like the data it trains on. The parts of a half
are disjoint and cover it: the mean of the clients' test results, weighted by their test examples,
is the result on the whole test half, and with one client the part is everything, in the original
order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedcore.data import skews
from fedcore.data.flower_partitioners import flower_partition
from fedcore.data.types import Dataset, Integers, Split
from fedcore.errors import ConfigurationError, DataError

# The least that NIID-Bench gives a client (Li et al. 2022, arXiv 2102.02079, its reference code).
MIN_TRAIN_EXAMPLES = 10
MIN_TEST_EXAMPLES = 1
_DRAWS = 1000
_SIZES = {
    "quantity": skews.dirichlet_sizes,
    "lognormal": skews.lognormal_sizes,
    "power-law": skews.power_law_sizes,
}
_KNOWN = (
    "iid, dirichlet:0.5, shards:2, labels:2, quantity:0.5, lognormal:1, power-law:1.5, natural, or one of "
    "flwr-datasets, as in flower:DirichletPartitioner:alpha=0.5"
)

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRows:
    """One client's rows of the training half [n] and of the test half [m], sorted, int64."""

    train: Integers
    test: Integers


def iid(train: Split, test: Split, *, clients: int, seed: int) -> list[ClientRows]:
    """Shuffle, then deal out in equal sizes."""
    rng = np.random.default_rng(seed)
    halves = [np.array_split(rng.permutation(len(half)), clients) for half in (train, test)]
    return _guarded(_joined(*halves), f"IID over {clients} clients", min_train=1)


def dirichlet(train: Split, test: Split, *, clients: int, seed: int, alpha: float) -> list[ClientRows]:
    """Label skew: the shares of a class over the clients are drawn from Dir(alpha).

    Hsu et al. (2019, arXiv 1909.06335) brought the Dirichlet distribution in for each client's mix
    of classes; this is the form by class of Yurochkin et al. (2019) and NIID-Bench, in which
    sizes differ too, and which the published tables for Flower use. As there, a client that has an
    equal share already gets nothing more, and the draw is repeated until every client has enough.
    """
    if MIN_TRAIN_EXAMPLES * clients > len(train):  # no draw can
        raise DataError(
            f"{len(train)} training examples cannot give each of {clients} clients {MIN_TRAIN_EXAMPLES}: take fewer "
            'clients, or partition = "iid", which gives each at least 1',
            check="too-few-examples",
        )
    rng = np.random.default_rng(seed)
    classes = 1 + max(int(_class_labels(half).max()) for half in (train, test))
    train_rows, test_rows = (_rows_by_class(half, classes, rng) for half in (train, test))
    for _ in range(_DRAWS):
        shares = _class_shares(train_rows, clients, alpha, rng)
        parts = _joined(_by_shares(train_rows, shares), _by_shares(test_rows, shares))
        if _too_small(parts) is None:
            return parts
    raise DataError(
        f"no draw of Dirichlet({alpha:g}) out of {_DRAWS} gives each of {clients} clients "
        f"{MIN_TRAIN_EXAMPLES} training examples and {MIN_TEST_EXAMPLES} test example: "
        "take a larger alpha or fewer clients",
        check="no-draw",
    )


def shards(train: Split, test: Split, *, clients: int, seed: int, per_client: int) -> list[ClientRows]:
    """Pathological: sort by label, cut into equal shards, give each client `per_client` of them.

    With two shards a client, McMahan et al. (2017, arXiv 1602.05629), section 3.
    """
    owner = np.random.default_rng(seed).permutation(clients * per_client) // per_client
    halves = []
    for half in (train, test):
        by_label = np.argsort(_class_labels(half), kind="stable")
        cut = np.array_split(by_label, clients * per_client)
        halves.append([np.concatenate([cut[i] for i in np.flatnonzero(owner == client)]) for client in range(clients)])
    return _guarded(_joined(*halves), f"{per_client} shards for each of {clients} clients")


def natural(train: Split, test: Split, *, clients: int) -> list[ClientRows]:
    """By the owner that the data come with; owner g goes to client g modulo `clients`."""
    if train.groups is None or test.groups is None:
        raise ConfigurationError(
            "this data set has no natural owners: use iid, dirichlet:ALPHA or shards:COUNT", check="no-natural-owners"
        )
    owners = int(train.groups.max()) + 1
    if clients > owners:
        raise ConfigurationError(
            f"{clients} clients cannot share {owners} natural owners: use {owners} or fewer", check="natural-owners"
        )
    halves = [
        [np.flatnonzero(groups % clients == client) for client in range(clients)]
        for groups in (train.groups, test.groups)
    ]
    return _guarded(_joined(*halves), f"natural owners over {clients} clients", min_train=1)


def k_labels(train: Split, test: Split, *, clients: int, seed: int, per_client: int) -> list[ClientRows]:
    """`per_client` labels for each client (`skews.labels`)."""
    _class_labels(train), _class_labels(test)
    halves = skews.labels(train, test, clients=clients, seed=seed, per_client=per_client)
    return _guarded(_joined(*halves), f"{per_client} labels for each of {clients} clients")


def unequal(train: Split, test: Split, *, seed: int, shares: NDArray[np.float64]) -> list[ClientRows]:
    """Quantity skew: both halves shuffled and cut by `shares` [clients]; what remains after each client's least."""
    return _joined(
        skews.by_sizes(train, shares, [seed, 1], MIN_TRAIN_EXAMPLES),
        skews.by_sizes(test, shares, [seed, 2], MIN_TEST_EXAMPLES),
    )


def partition(spec: str, dataset: Dataset, *, clients: int, seed: int) -> list[ClientRows]:
    """The parts of `clients` clients by a rule written as text.

    Raises ConfigurationError for a rule that does not exist or does not fit the data, DataError if a part would be too
    small.

    Args:
        spec: "iid", "dirichlet:ALPHA", "shards:COUNT", "labels:COUNT", "quantity:ALPHA", "lognormal:SIGMA",
            "power-law:EXPONENT", "natural", or "flower:NAME:KEY=VALUE,..." for a partitioner of flwr-datasets.
    """
    if clients < 1:
        raise ConfigurationError(f"a partition needs at least one client, not {clients}", check="no-clients")
    if seed < 0:
        raise ConfigurationError(f"a partition's seed cannot be negative: {seed}")
    train, test = dataset.train, dataset.test
    name, _, value = spec.partition(":")
    match name:
        case "iid" if spec == name:
            return iid(train, test, clients=clients, seed=seed)
        case "natural" if spec == name:
            return natural(train, test, clients=clients)
        case "dirichlet":
            alpha = _positive(spec, value, float)
            return dirichlet(train, test, clients=clients, seed=seed, alpha=alpha)
        case "shards":
            count = _positive(spec, value, int)
            return shards(train, test, clients=clients, seed=seed, per_client=count)
        case "labels":
            count = _positive(spec, value, int)
            return k_labels(train, test, clients=clients, seed=seed, per_client=count)
        case "quantity" | "lognormal" | "power-law":
            shares = _SIZES[name](clients, seed, _positive(spec, value, float))
            return unequal(train, test, seed=seed, shares=shares)
        case "flower":
            rows = flower_partition(value, train, test, clients=clients, seed=seed)
            return _guarded(_joined(*rows), f"{value} over {clients} clients", min_train=1)
    raise ConfigurationError(f"unknown partition {spec!r}: use {_KNOWN}")


def client_data(dataset: Dataset, spec: str, *, client: int, clients: int, seed: int) -> tuple[Split, Split]:
    """Training and test data of one client (0 to clients - 1) under `partition`."""
    if not 0 <= client < clients:
        raise ConfigurationError(f"there is no client {client} among {clients}", check="no-such-client")
    part = partition(spec, dataset, clients=clients, seed=seed)[client]
    return dataset.train.take(part.train), dataset.test.take(part.test)


def _positive(spec: str, value: str, kind: Callable[[str], _Number]) -> _Number:
    """The number behind the colon of a rule."""
    try:
        number = kind(value)
    except ValueError:
        number = kind("0")
    if not 0 < number < float("inf"):
        raise ConfigurationError(
            f"partition {spec!r} needs a positive number after the colon, as in dirichlet:0.5 or shards:2"
        )
    return number


def _class_labels(half: Split) -> Integers:
    if half.y.ndim != 1:
        raise ConfigurationError("this data set has no class for each example: use iid or natural", check="no-labels")
    return half.y


def _rows_by_class(half: Split, classes: int, rng: np.random.Generator) -> list[Integers]:
    """Row numbers of each class, each list shuffled."""
    return [rng.permutation(np.flatnonzero(half.y == c)) for c in range(classes)]


def _class_shares(rows: list[Integers], clients: int, alpha: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Shares [classes, clients] of each class, rows summing to one."""
    equal = sum(len(of_class) for of_class in rows) / clients
    sizes = np.zeros(clients)
    shares = np.empty((len(rows), clients))
    for c, of_class in enumerate(rows):
        drawn = rng.dirichlet(np.full(clients, alpha)) * (sizes < equal)
        # A small alpha can put the whole draw on clients that are full already.
        total = drawn.sum()
        shares[c] = drawn / total if total > 0 else (sizes < equal) / max((sizes < equal).sum(), 1)
        sizes += shares[c] * len(of_class)
    return shares


def _by_shares(rows: list[Integers], shares: NDArray[np.float64]) -> list[Integers]:
    """Cut every class at the running sum of its shares."""
    clients = shares.shape[1]
    shares_of: list[list[Integers]] = [[] for _ in range(clients)]
    for of_class, share in zip(rows, shares, strict=True):
        cuts = np.rint(np.cumsum(share)[:-1] * len(of_class)).astype(np.int64)
        for client, share_of_class in enumerate(np.split(of_class, cuts)):
            shares_of[client].append(share_of_class)
    return [np.concatenate(of_client) for of_client in shares_of]


def _joined(train: list[Integers], test: list[Integers]) -> list[ClientRows]:
    return [
        ClientRows(train=np.sort(a).astype(np.int64), test=np.sort(b).astype(np.int64))
        for a, b in zip(train, test, strict=True)
    ]


def _too_small(parts: list[ClientRows], min_train: int = MIN_TRAIN_EXAMPLES) -> int | None:
    """The first client with too few examples."""
    for client, part in enumerate(parts):
        if len(part.train) < min_train or len(part.test) < MIN_TEST_EXAMPLES:
            return client
    return None


def _guarded(parts: list[ClientRows], rule: str, min_train: int = MIN_TRAIN_EXAMPLES) -> list[ClientRows]:
    client = _too_small(parts, min_train)
    if client is None:
        return parts
    raise DataError(
        f"{rule} leaves client {client} with {len(parts[client].train)} training and "
        f"{len(parts[client].test)} test examples (at least {min_train} and "
        f"{MIN_TEST_EXAMPLES} are needed): use fewer clients",
        check="too-few-examples",
    )
