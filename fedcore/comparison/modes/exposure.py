"""What each mode shows to whom, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from fedcore.comparison.modes.base import InReport

EYES: Final = ("the server sees", "other sites see", "who listens on the network sees")
Views: TypeAlias = tuple[str, str, str]

_NO_SERVER: Final = "there is none"
_TLS: Final = "sizes and times; what is sent is encrypted (TLS)"
_SIMULATED: Final = "nothing: it is a simulation"
_OPEN: Final = "all that is sent: these connections are not encrypted"
_FEDERATED: Final[Mapping[str, Views]] = {
    "secure": ("sums of updates and their metrics, no single one", "the model of each round", _TLS),
    "private": ("sums of updates with noise in them, no single one", "the model of each round, which has noise", _TLS),
    "plain": ("every update and its metrics", "the model of each round", _TLS),
}
_OTHERS: Final[Mapping[str, Views]] = {
    "pooled": ("all data, in one place", "nothing", "as the data are brought together"),
    "nobody": (_NO_SERVER, "nothing: each site trains alone", "nothing"),
    "sites": (_NO_SERVER, "parts of gradients or models that are added up, and the sum", _OPEN),
    "server": ("every gradient of every site", "the model of each step", _OPEN),
}


def views_of(about: InReport, *, simulation: bool = False) -> Views | None:
    """What the server, other sites and an eavesdropper see; None of a mode that is not known here.

    Args:
        simulation: whether its runs were simulated, so that nothing was sent.
    """
    views = _FEDERATED.get(about.protection) or _OTHERS.get(about.readers)
    return (*views[:2], _SIMULATED) if views and simulation else views
