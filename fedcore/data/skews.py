"""Further rules of `partition`: k labels for each client, and unequal numbers of examples.

As the rules there: pure functions of the seed, training and test half by one rule, parts that cover each half.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcore.data.types import Integers, Split
from fedcore.errors import ConfigurationError, DataError

_DRAWS = 1000
Rows = list[Integers]


def labels(train: Split, test: Split, *, clients: int, seed: int, per_client: int) -> tuple[Rows, Rows]:
    """Quantity-based label imbalance: each client has `per_client` different labels.

    NIID-Bench (Li et al. 2022, arXiv 2102.02079), section 4.1, "#C = k", as in its reference code: client i has label i
    modulo the number of labels, and others drawn at random; the rows of a label are divided evenly among its clients.
    Draws in which some label has no client are repeated, for its rows would be nobody's.
    """
    kinds = 1 + max(int(half.y.max()) for half in (train, test))
    if per_client > kinds:
        raise ConfigurationError(f"a client cannot have {per_client} of {kinds} labels", check="too-many-labels")
    if clients * per_client < kinds:
        raise ConfigurationError(
            f"{clients} clients with {per_client} labels each leave some of {kinds} labels to nobody: use more",
            check="too-few-labels",
        )
    rng = np.random.default_rng(seed)
    owners = _owners(clients, kinds, per_client, rng)
    halves = []
    for half in (train, test):
        parts: list[list[Integers]] = [[] for _ in range(clients)]
        for label, holders in enumerate(owners):
            rows = rng.permutation(np.flatnonzero(half.y == label))
            for client, part in zip(holders, np.array_split(rows, len(holders)), strict=True):
                parts[client].append(part)
        halves.append([np.concatenate(part) for part in parts])
    return halves[0], halves[1]


def _owners(clients: int, kinds: int, per_client: int, rng: np.random.Generator) -> list[list[int]]:
    """The clients of each label."""
    for _ in range(_DRAWS):
        owners: list[list[int]] = [[] for _ in range(kinds)]
        for client in range(clients):
            first = client % kinds
            others = rng.permutation([label for label in range(kinds) if label != first])[: per_client - 1]
            for label in (first, *others.tolist()):
                owners[label].append(client)
        if all(owners):
            return owners
    raise DataError(f"no draw of {per_client} labels for each of {clients} clients out of {_DRAWS} covers all labels")


def dirichlet_sizes(clients: int, seed: int, alpha: float) -> NDArray[np.float64]:
    """Shares [clients] of all examples from Dir(alpha): NIID-Bench, section 4.3, "quantity skew"."""
    weights: NDArray[np.float64] = np.random.default_rng(seed).dirichlet(np.full(clients, alpha))
    return weights


def lognormal_sizes(clients: int, seed: int, sigma: float) -> NDArray[np.float64]:
    """Shares [clients] proportional to exp(sigma z), z normal; FedProx's synthetic data have sizes of that kind (Li et
    al. 2020, MLSys, its reference code: lognormal(4, 2))."""
    weights = np.exp(sigma * np.random.default_rng(seed).standard_normal(clients))
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def power_law_sizes(clients: int, seed: int, exponent: float) -> NDArray[np.float64]:
    """Shares [clients] proportional to rank^-exponent, the ranks in an order that `seed` decides.

    Sizes that follow a power law: Li et al. 2020 (MLSys), section 5.1.
    """
    weights = np.random.default_rng(seed).permutation(np.arange(1, clients + 1, dtype=np.float64) ** -exponent)
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def by_sizes(half: Split, shares: NDArray[np.float64], seed: Sequence[int], least: int) -> Rows:
    """A shuffled half, cut by shares [clients]; every client has `least` rows, and a share of the others."""
    rng = np.random.default_rng(seed)
    spare = len(half) - least * len(shares)
    if spare < 0:
        raise DataError(f"{len(half)} examples do not give each of {len(shares)} clients {least}: use fewer clients")
    sizes = least + np.diff(np.rint(np.cumsum(np.concatenate([[0.0], shares])) * spare).astype(np.int64))
    return np.split(rng.permutation(len(half)), np.cumsum(sizes)[:-1])
