"""The policy of a client's owner: policy.toml, which the server cannot lower."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, Self, TypeAlias

from fedcore.errors import KitError
from fedcore.federation.eligibility import EligibilityRules, Hours
from fedcore.federation.files import broken, read_toml
from fedcore.run.settings import ROUNDS_KEY
from fedcore.secagg import FULL_GRAPH_BELOW, default_quorum
from fedcore.system.assignments import flat
from fedcore.trees.settings import MOST_DEPTH

MIN_CORRUPT: Final = 0.05
"""What a policy demands where its file says nothing; the default of a job's max-corrupt."""

STRICT_EPSILON: Final = 8.0
"""What all sums together may reveal by a strict policy."""

ANY_KEY: Final = "*"
"""The key of allow-config that stands for all."""

SETTINGS_PREFIX: Final = "fedcore."
"""Stands in allow-config before a setting of the run, to tell it from the app's own run config."""

ConfigRule: TypeAlias = Literal[True] | tuple[float, float] | tuple[str, ...]
"""What a run may change a key to: anything, a number from the first to the second, or one of these texts."""

APP_MODEL: Final = "app"
"""In first-models: the model that the ServerApp of the agreed app asks with first."""

ANY_MODEL: Final = "any"
"""In first-models: whatever model the server sends."""

NEAR_MODELS: Final = 0.25
"""Of a step of training: below it honest rounds never lie, whose models are a whole step apart."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_EVERYTHING: Final[Mapping[str, ConfigRule]] = MappingProxyType({ANY_KEY: True})
_ROUNDS_ONLY: Final[Mapping[str, ConfigRule]] = MappingProxyType({ROUNDS_KEY: (1, 10_000)})
_TYPES: Final[Mapping[str, type]] = {
    "min-cohort": int,
    "min-threshold": int,
    "app-sha256": str,
    "allow-plain": bool,
    "allow-buffered": bool,
    "min-corrupt": float,
    "allow-x25519": bool,
    "max-epsilon": float,
    "delta": float,
    "max-row-epsilon": float,
    "report-failures": bool,
    "pad-seconds": float,
    "allow-config": dict,
    "allow-differencing": bool,
    "near-models": float,
    "first-models": list,
    "max-model-bytes": int,
    "max-seconds": float,
    "max-tensors": int,
    "max-exchanges-per-run": int,
    "max-exchanges-per-day": int,
    "max-releases": int,
    "max-queries": int,
    "max-tree-depth": int,
    "min-rows-in-node": int,
    "train-hours": list,
    "on-power-only": bool,
    "idle-only": bool,
    "idle-load": float,
}


TWO_TELL_EACH_OTHER: Final = (
    "every client's policy.toml has min-cohort = 2: in a sum of two, each of them subtracts its own update and reads "
    "the other's. That is for clients of one owner: if they belong to several, let three or more take part, with "
    "min-cohort = 3"
)
"""A warning for the maker of such policies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a client's owner insists on; the server cannot lower it.

    min_cohort: fewest clients that do not collude with the server in any sum with this one in it.
    min_threshold: fewest clients that must work together to remove a mask.
    app_sha256: hash of the only app it agrees to run; None for any app that the owner installed.
    allow_plain: whether the server may read this client's updates one by one, as it does with
        `aggregation = "plain"`.
    allow_buffered: whether its updates may be summed with ones that began from other models, as a buffered run does
        (`asynchrony = "buffered"`). A server that lies can have the others train from models that teach them nothing.
    min_corrupt: fraction of the roster's members that must be able to collude with the server without learning
        more than the sum.
    allow_x25519: whether keys may be agreed without ML-KEM, so that uploads that somebody records
        would open to a later quantum computer.
    max_epsilon: how much all sums with this client in them may reveal about it together, in all runs;
        0 if its owner does not insist on differential privacy.
    delta: the delta at which epsilon is counted.
    max_row_epsilon: how much all sums with this client in them may reveal about one row of it together, in all runs; 0
        if its owner does not insist on it. Sums whose noise protects rows alone count here, and not for `max_epsilon`.
    report_failures: whether the server learns that the local work failed, and why. If not, a failure becomes a masked
        zero, and the server learns how many there were in a sum, never whose.
    pad_seconds: uploads begin at whole multiples of this time after the task came; 0 for as soon as they can.
    allow_config: which keys a run may set to other values than the installed app, and to which.
    allow_differencing: whether sums from one model may together tell that over fewer than `min_cohort` clients.
    near_models: which fraction of a step of training two models lie apart at most that count as one model there; 0 for
        models that are the same.
    first_models: which models a run may begin with: `APP_MODEL`, SHA-256 of models, `ANY_MODEL`.
    max_model_bytes: the largest model that is accepted.
    max_seconds: the longest local work that is accepted.
    max_tensors: most tensors of a model.
    max_exchanges_per_run: how often one run can ask this client.
    max_exchanges_per_day: how often all runs together can ask it.
    max_releases: most sums with this client in them of one model and purpose.
    max_queries: most sums of queries with this client in them, all runs together.
    max_tree_depth: how deep boosted trees may be whose sums this client is in; 0 for no trees.
    min_rows_in_node: fewest rows, of all clients, that the settings of a run of boosted trees leave in each node.
    eligibility: when the machine may train at all; not a question of what the server asks for.
    """

    min_cohort: int
    min_threshold: int
    app_sha256: str | None = None
    allow_plain: bool = False
    allow_buffered: bool = False
    min_corrupt: float = MIN_CORRUPT
    allow_x25519: bool = False
    max_epsilon: float = 0.0
    delta: float = 1e-5
    max_row_epsilon: float = 0.0
    report_failures: bool = False
    pad_seconds: float = 0.0
    allow_config: Mapping[str, ConfigRule] = field(default_factory=lambda: _ROUNDS_ONLY)
    allow_differencing: bool = False
    near_models: float = NEAR_MODELS
    first_models: tuple[str, ...] = (APP_MODEL,)
    max_model_bytes: int = 8_000_000_000
    max_seconds: float = 86_400.0
    max_tensors: int = 10_000
    max_exchanges_per_run: int = 10_000
    max_exchanges_per_day: int = 10_000
    max_releases: int = 10
    max_queries: int = 1_000
    max_tree_depth: int = MOST_DEPTH
    min_rows_in_node: int = 1
    eligibility: EligibilityRules = field(default_factory=EligibilityRules)

    def __post_init__(self) -> None:
        if self.min_cohort < 2:
            raise KitError("min-cohort must be at least 2: a sum over one client is that client's update")
        if not 2 <= self.min_threshold <= self.min_cohort:
            raise KitError("min-threshold must be at least 2 and at most min-cohort")
        if not 0 <= self.min_corrupt < 1 / 3:
            raise KitError("min-corrupt must be at least 0 and less than a third")
        if self.app_sha256 is not None and not _SHA256.fullmatch(self.app_sha256):
            raise KitError("app-sha256 must be 64 lower-case hexadecimal digits, or empty")
        for key, most in (("max-epsilon", self.max_epsilon), ("max-row-epsilon", self.max_row_epsilon)):
            if not 0 <= most < math.inf:
                raise KitError(f"{key} must be a number that is not negative; 0 does not ask for differential privacy")
        if not 0 < self.delta < 1:
            raise KitError("delta must be greater than 0 and less than 1")
        if (self.max_epsilon or self.max_row_epsilon) and self.allow_plain:
            key = "max-epsilon" if self.max_epsilon else "max-row-epsilon"
            raise KitError(f"allow-plain and {key} contradict each other: a readable update has no noise")
        self._check_bounds()
        _check_first_models(self.first_models)
        rules = {key: _config_rule(key, rule) for key, rule in self.allow_config.items()}
        object.__setattr__(self, "allow_config", MappingProxyType(rules))

    def _check_bounds(self) -> None:
        for name in ("max_model_bytes", "max_tensors", "max_exchanges_per_run", "max_exchanges_per_day"):
            if getattr(self, name) < 1:
                raise KitError(f"{name.replace('_', '-')} must be at least 1")
        if not 0 < self.max_seconds < math.inf:
            raise KitError("max-seconds must be a number greater than 0")
        if not 0 <= self.pad_seconds <= self.max_seconds:
            raise KitError("pad-seconds must be at least 0 and at most max-seconds")
        if self.max_releases < 1:
            raise KitError("max-releases must be at least 1: how many sums of one model and purpose this client is in")
        if not 0 <= self.near_models < 1:
            raise KitError("near-models must be at least 0 and less than 1: honest rounds lie a whole step apart")
        if self.max_queries < 0:
            raise KitError("max-queries must not be negative: 0 answers no query in secure mode")
        if self.max_tree_depth < 0:
            raise KitError("max-tree-depth must not be negative: 0 answers no query for boosted trees in secure mode")
        if self.min_rows_in_node < 1:
            raise KitError("min-rows-in-node must be at least 1: a node without rows is never split off")

    @property
    def traces_models(self) -> bool:
        """Whether a run has to begin with a model that this client can trace."""
        return ANY_MODEL not in self.first_models

    @classmethod
    def default(cls, clients: int) -> Self:
        """The policy that `provision` gives to each of `clients` clients.

        Three is the smallest number of honest clients whose sum tells no member the update of another; a federation
        of two has no choice. The threshold is the protocol's default for that cohort,
        floor(2n/3) + 1, so a server that names a smaller one is refused. Large federations agree on
        keys without ML-KEM by default, which is a question of bytes (docs/adr/0006).
        """
        cohort = max(2, min(3, clients))
        return cls(
            min_cohort=cohort,
            min_threshold=default_quorum(cohort),
            allow_x25519=clients >= FULL_GRAPH_BELOW,
        )

    @classmethod
    def strict(cls, clients: int) -> Self:
        """The stock policy for data whose single records must stay private: no sum without noise, of statistics either.

        Masks hide updates, and noise alone bounds what their sums reveal about a record (`STRICT_EPSILON`). Runs begin
        with the app's own model, and updates that began from different models are in no sum.
        """
        stock = cls.default(clients)
        return replace(stock, max_epsilon=STRICT_EPSILON, first_models=(APP_MODEL,), allow_buffered=False)

    @classmethod
    def ready(cls, name: str, clients: int) -> Self | None:
        """A policy by its name, "stock", "strict" or "own"; None for another name."""
        match name:
            case "stock":
                return cls.default(clients)
            case "strict":
                return cls.strict(clients)
            case "own":
                return cls.own(clients, allow_plain=True)
        return None

    @classmethod
    def own(cls, clients: int, **changes: Any) -> Self:
        """The policy of somebody whose clients are all their own: they may read what those hold anyway.

        Failures are told, a run may change every key and begin with any model, and sums may be taken as often and of
        whom it pleases. `changes` are fields to set otherwise.
        """
        default = cls.default(clients)
        loose: dict[str, Any] = {
            "min_cohort": default.min_cohort,
            "min_threshold": default.min_threshold,
            "allow_x25519": default.allow_x25519,
            "report_failures": True,
            "allow_config": _EVERYTHING,
            "allow_differencing": True,
            "first_models": (ANY_MODEL,),
            "allow_buffered": True,
            "max_queries": 1_000_000,  # a comparison grows boosted trees in many runs
        }
        return cls(**loose | changes)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read policy.toml; raises KitError or UnknownKey."""
        values = read_toml(path, _TYPES, optional=frozenset(_TYPES) - {"min-cohort", "min-threshold"})
        fields = {key.replace("-", "_"): value for key, value in values.items()}
        rules = {key: fields.pop(key) for key in EligibilityRules.__slots__ if key in fields}
        if "first_models" in fields:
            fields["first_models"] = tuple(fields["first_models"])
        if "allow_config" in fields:
            fields["allow_config"] = dict(flat(fields["allow_config"]))
        try:
            return cls(**{**fields, "app_sha256": fields.get("app_sha256") or None, "eligibility": _eligibility(rules)})
        except KitError as error:
            raise broken(path, str(error), "mend the line", check=error.check) from None


def _check_first_models(names: tuple[object, ...]) -> None:
    for name in names:
        if name not in (APP_MODEL, ANY_MODEL) and not (isinstance(name, str) and _SHA256.fullmatch(name)):
            raise KitError(
                f'first-models has {name!r}: it lists "{APP_MODEL}", "{ANY_MODEL}", or SHA-256 of models, 64 '
                "lower-case hexadecimal digits each",
                check="first-models",
            )
    if not names:
        raise KitError("first-models is empty: no run could begin", check="first-models")


def _config_rule(key: str, rule: object) -> ConfigRule:
    """A rule of allow-config, from TOML or from code; raises KitError."""
    if rule is True:
        return True
    items: tuple[Any, ...] = tuple(rule) if isinstance(rule, list | tuple) else ()
    if items and all(isinstance(item, str) for item in items):
        return items
    numbers = [item for item in items if type(item) in (int, float) and math.isfinite(item)]
    if len(items) == len(numbers) == 2 and numbers[0] <= numbers[1]:
        return numbers[0], numbers[1]
    raise KitError(f"allow-config.{key} must be true, a range of numbers [low, high], or a list of strings")


def _eligibility(rules: Mapping[str, Any]) -> EligibilityRules:
    hours = rules.get("train_hours", [])
    if not all(isinstance(text, str) for text in hours):
        raise KitError('train-hours must be a list of strings such as "22:00-06:00"')
    return EligibilityRules(**{**rules, "train_hours": tuple(map(Hours.parse, hours))})
