"""The modes of a comparison: one row for each, and the words that choose them on the command line.

All modes train the same model on the same examples, from the same first weights, for the same number of examples. They
differ in who computes a gradient, on which data, and in what is exchanged, how often:

- *centralized*: all data in one place; what the others would be without any separation.
- *local*: every site alone; what separation costs if nothing is exchanged.
- *xgboost*: XGBoost itself on all rows in one place; of an app of boosted trees alone.
- *allreduce*: synchronous data parallel training. Each step sums the gradients of all workers' shares of one batch (Li
  et al. 2020, "PyTorch distributed"): mathematically the same as centralized training with that batch.
- *local-sgd*, *diloco*: every worker makes h steps on a copy of its own, then the copies are averaged (Stich 2019), and
  the mean of their movements may be the gradient of an outer optimizer (Douillard et al. 2023).
- *ps-sync*, *ps-async*, *ps-ssp*: workers pull the model from a server and push gradients to it; in the same step for
  all, whenever they like, or with a bound on who runs ahead (`fedcore.comparison.parameter_server`).
- *federated*, *federated-plain*, *federated-dp*: the app itself on a real server and clients, which train for a whole
  round before their updates are averaged (McMahan et al. 2017), with secure aggregation, without it, and with
  differential privacy.
- *federated-async*: the same, but that a model is made as soon as enough clients are ready (Nguyen et al. 2022).

A package adds one as an entry point of the group `fedcore.modes` (docs/extending.md). The class of a mode says how its
processes start, how long the same would have taken on another network, and what follows from a lost worker
(`fedcore.comparison.modes.base`).
"""

from __future__ import annotations

import re
from typing import Any

from fedcore.comparison.modes.allreduce import AllReduce
from fedcore.comparison.modes.averaging import OUTER, ModelAveraging
from fedcore.comparison.modes.base import InReport, Mode, Option, Trained
from fedcore.comparison.modes.centralized import Centralized
from fedcore.comparison.modes.federated import Federated
from fedcore.comparison.modes.federated_async import FederatedAsync
from fedcore.comparison.modes.local import Local
from fedcore.comparison.modes.parameter_server import ParameterServer
from fedcore.comparison.modes.xgboost_pooled import PooledXGBoost
from fedcore.comparison.run import ChosenMode
from fedcore.errors import ConfigurationError
from fedcore.system.assignments import parse_assignments
from fedcore.system.plugins import Registry, must_derive

__all__ = ["MODES", "ChosenMode", "InReport", "Mode", "Option", "Trained", "every_mode", "in_report", "parse_modes"]

_ROWS: tuple[Mode, ...] = (
    Centralized(name="centralized", title="all data in one place"),
    Local(name="local", title="each site alone"),
    PooledXGBoost(name="xgboost", title="XGBoost on all rows in one place, with its own bins"),
    AllReduce(name="allreduce", title="synchronous data parallel, gradients averaged every step"),
    ModelAveraging(name="local-sgd", title="models averaged every h steps, no server"),
    ModelAveraging(name="diloco", title="local-sgd with an outer Nesterov optimizer", outer=OUTER),
    ParameterServer(name="ps-sync", title="parameter server, one step for all workers", together=True),
    ParameterServer(name="ps-async", title="parameter server, nobody waits"),
    ParameterServer(name="ps-ssp", title="parameter server, at most s steps ahead", bounded=True),
    Federated(name="federated", title="secure aggregation: the server learns the sum alone"),
    Federated(name="federated-plain", title="the server reads every update", protection="plain"),
    FederatedAsync(
        name="federated-async", title="secure sums of the clients that are ready; nobody waits for the slowest"
    ),
    Federated(name="federated-dp", title="secure aggregation with differential privacy", protection="private"),
)


def _mode(name: str, plugin: Any) -> Mode:
    must_derive(plugin, Mode)
    mode: Mode = plugin(name=name)
    return mode


MODES: Registry[Mode] = Registry(
    "mode", "fedcore.modes", {mode.name: mode for mode in _ROWS}, where="--modes", accept=_mode
)


def every_mode() -> tuple[str, ...]:
    """The modes that need no further settings."""
    return tuple(name for name, mode in MODES.items() if not mode.private)


def in_report(name: str) -> InReport:
    """What sets a mode apart in a report; of a mode that is not installed here, or broken, nothing."""
    try:
        return MODES[name].in_report
    except ConfigurationError:
        return InReport()


def parse_modes(text: str) -> tuple[ChosenMode, ...]:
    """Read `centralized,ps-ssp[s=3,shards=2],federated[strategy=fedyogi]`.

    In the brackets stand options of the mode, and values of the app's run config (in federated modes also of
    [tool.fedcore]) for this mode alone.
    Raises ConfigurationError for a mode that does not exist, is there twice, or has an option of a wrong kind.
    """
    chosen = tuple(_parse(word.strip()) for word in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", text) if word.strip())
    labels = [one.label for one in chosen]
    if not chosen or len(set(labels)) != len(labels):
        raise ConfigurationError("name each mode once, at least one")
    return chosen


def _parse(word: str) -> ChosenMode:
    name, bracket, rest = word.partition("[")
    mode = MODES[name]
    if bracket and not rest.endswith("]"):
        raise ConfigurationError(f"expected MODE[key=value,...], not {word!r}")
    values = parse_assignments([part for part in rest.rstrip("]").split(",") if part.strip()])
    chosen = ChosenMode(
        mode=mode,
        label=word,
        options={key: option.default for key, option in mode.options.items()},
        config={key: value for key, value in values.items() if key not in mode.options},
        keys=frozenset(values),
    )
    return chosen.with_options({key: value for key, value in values.items() if key in mode.options})
