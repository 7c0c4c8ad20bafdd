"""Client side of federated algorithms that change the local steps.

Each is a function of the clients' means alone, so that a server which learns only sums can lead it: what a client does
is decided by the model and the few numbers that all clients are sent alike, by its own data, and by what it keeps.
What it gives back is its model, a second section of named tensors if the algorithm has one, and a few metrics.

    fednova            updates divided by the length of the way that was taken     (Wang et al. 2020)
    scaffold           gradients corrected by control variates, a second section   (Karimireddy et al. 2020)
    feddyn             a linear term and a pull, of the client's own past          (Acar et al. 2021)
    adaptive-clipping  updates clipped to a norm that follows a quantile           (Andrew et al. 2021)

What the server does with the means is in `fedcore.flower.strategies.algorithms`. FedProx is a rule alone
(`rules.Proximal`); what stays on a client as it is (Ditto, FedPer, FedBN) is in `fedcore.flower.apps.personalization`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedcore.state.layout import CONTROL
from fedcore.training.algorithms.base import LocalAlgorithm
from fedcore.training.algorithms.clipping import BOUND, NOT_CLIPPED, LocalClipping
from fedcore.training.algorithms.feddyn import ALPHA, LocalFedDyn
from fedcore.training.algorithms.fednova import LENGTH, LocalFedNova
from fedcore.training.algorithms.scaffold import LocalScaffold
from fedcore.training.engines import Engine

__all__ = [
    "ALGORITHMS",
    "ALPHA",
    "BOUND",
    "CONTROL",
    "LENGTH",
    "NOT_CLIPPED",
    "LocalAlgorithm",
    "make_algorithm",
]

ALGORITHMS: Mapping[str, type[LocalAlgorithm]] = {
    kind.name: kind for kind in (LocalFedNova, LocalScaffold, LocalFedDyn, LocalClipping)
}


def make_algorithm(
    name: str, engine: Engine, federated: Collection[str], settings: Mapping[str, Any]
) -> LocalAlgorithm | None:
    """The algorithm of one training; None for a name that asks for nothing of the client.

    Raises ConfigurationError for an engine, an optimizer or a value that the algorithm cannot work with.

    Args:
        federated: names of the tensors that go to the server.
        settings: what the strategy sent along.
    """
    kind = ALGORITHMS.get(name)
    return None if kind is None else kind(engine, federated, settings)
