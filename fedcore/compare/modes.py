"""The modes of a comparison, and the words that choose them on the command line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias

from fedcore.config import parse_assignments
from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.wire import Scalar

Family: TypeAlias = Literal["centralized", "local", "synchronous", "averaging", "parameter-server", "federated"]

# Options of the modes with their defaults; whatever else stands in the brackets of a mode is for the app's run config.
_BATCH = {"global-batch": 0}
_SERVER = {"shards": 1}
_CHOICES = {"hook": ("none", "fp16", "bf16", "powersgd")}
_AT_LEAST_1 = frozenset({"h", "ranks", "shards"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a mode is. options: with their defaults."""

    family: Family
    title: str
    options: Mapping[str, Scalar] = field(default_factory=dict)


KINDS: Mapping[str, Kind] = {
    "centralized": Kind(family="centralized", title="all data in one place", options={**_BATCH, "ranks": 1}),
    "local": Kind(family="local", title="each site alone"),
    "allreduce": Kind(
        family="synchronous",
        title="synchronous data parallel, gradients averaged every step",
        options={**_BATCH, "hook": "none"},
    ),
    "local-sgd": Kind(
        family="averaging", title="models averaged every h steps, no server", options={**_BATCH, "h": 16}
    ),
    "diloco": Kind(
        family="averaging",
        title="local-sgd with an outer Nesterov optimizer",
        options={**_BATCH, "h": 16, "outer-lr": 0.7, "outer-momentum": 0.9},
    ),
    "ps-sync": Kind(
        family="parameter-server", title="parameter server, one step for all workers", options={**_BATCH, **_SERVER}
    ),
    "ps-async": Kind(family="parameter-server", title="parameter server, nobody waits", options=_SERVER),
    "ps-ssp": Kind(
        family="parameter-server", title="parameter server, at most s steps ahead", options={**_SERVER, "s": 3.0}
    ),
    "federated": Kind(family="federated", title="secure aggregation: the server learns the sum alone"),
    "federated-plain": Kind(family="federated", title="the server reads every update"),
    "federated-dp": Kind(family="federated", title="secure aggregation with differential privacy"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One mode with its options.

    label: how it was written, its name in reports. options: every option of its kind, the defaults included. config:
    what it lays over the run config and, for a federated mode, over [tool.fedcore]. given: the keys in its brackets.
    """

    kind: str
    label: str
    options: Mapping[str, Scalar]
    config: Mapping[str, Scalar] = field(default_factory=dict)
    given: frozenset[str] = frozenset()

    @property
    def family(self) -> Family:
        return KINDS[self.kind].family

    def with_options(self, changes: Mapping[str, Any]) -> Self:
        """The mode with other values of some options; raises ConfigurationError for a value that does not fit."""
        known = KINDS[self.kind].options
        return replace(self, options={**self.options, **{key: _as(key, changes[key], known[key]) for key in changes}})


def parse_modes(text: str) -> tuple[Mode, ...]:
    """Read `centralized,ps-ssp[s=3,shards=2],federated[strategy=fedyogi]`.

    In the brackets stand options of the mode, and values of the app's run config (in federated modes also of
    [tool.fedcore]) for this mode alone.
    Raises ConfigurationError for a mode that does not exist, is there twice, or has an option of a wrong kind.
    """
    modes = tuple(_parse(word.strip()) for word in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", text) if word.strip())
    labels = [mode.label for mode in modes]
    if not modes or len(set(labels)) != len(labels):
        raise ConfigurationError("name each mode once, at least one")
    return modes


def _parse(word: str) -> Mode:
    name, bracket, rest = word.partition("[")
    if name not in KINDS:
        raise UnknownKey(name, KINDS, "--modes")
    if bracket and not rest.endswith("]"):
        raise ConfigurationError(f"expected MODE[key=value,...], not {word!r}")
    given = parse_assignments([part for part in rest.rstrip("]").split(",") if part.strip()])
    known = KINDS[name].options
    config = {key: value for key, value in given.items() if key not in known}
    mode = Mode(kind=name, label=word, options=known, config=config, given=frozenset(given))
    return mode.with_options({key: value for key, value in given.items() if key in known})


def _as(key: str, value: Any, default: Scalar) -> Scalar:
    """A value in the type of its default; numbers are not negative."""
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not type(default):
        raise ConfigurationError(f"{key} must be of type {type(default).__name__}, not {value!r}")
    if isinstance(value, int | float) and (value < 0 or math.isnan(value)):
        raise ConfigurationError(f"{key} cannot be {value}")
    if key in _AT_LEAST_1 and value == 0:
        raise ConfigurationError(f"{key} must be at least 1")
    if key in _CHOICES and value not in _CHOICES[key]:
        raise ConfigurationError(f"{key} must be one of {', '.join(_CHOICES[key])}, not {value!r}")
    return value
