"""Personalization: which tensors stay on the client, and how both models take turns on one engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final, Self

import torch
from flwr.app import UserConfig
from torch import nn

from fedcore.errors import ConfigurationError
from fedcore.flower.apps.own_model_store import OwnModelStore, Provenance
from fedcore.flower.records import cast_to_layout
from fedcore.state import Layout, MemorySink, ModelState, StateSink
from fedcore.training.engines import Engine, Proximal
from fedcore.training.engines.transfer import parameter_of
from fedcore.training.shared_tensors import adapter_names, personal_names
from fedcore.wire.base import MetricValue

FREEZE_KEY: Final = "freeze"
PERSONAL: Final = frozenset({"ditto", "fedbn", "fedper"})
"""Strategies under which a client keeps a model, or a part of one, that is its own."""
DITTO_KEY: Final = "ditto-lambda"
LAYERS_KEY: Final = "personal-layers"
_DITTO: Final = 0.1


def patterns_in(config: UserConfig, key: str) -> tuple[str, ...]:
    """Patterns of names with * and ?, which stand in the run config with commas between them."""
    return tuple(part.strip() for part in str(config.get(key, "")).split(",") if part.strip())


@dataclass(frozen=True, slots=True)
class Frozen:
    """Which parameters are left alone.

    patterns: of their names, () for none.
    """

    patterns: tuple[str, ...]

    @classmethod
    def of(cls, config: UserConfig) -> Self:
        """As the run config has it."""
        return cls(patterns_in(config, FREEZE_KEY))

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def applied(self, model: nn.Module) -> nn.Module:
        """The model, its frozen parameters without gradients.

        Raises ConfigurationError for a pattern that no parameter fits, and if nothing would be left to train.
        """
        parameters = dict(model.named_parameters(remove_duplicate=False))
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in parameters):
                raise ConfigurationError(
                    f"{FREEZE_KEY}: no parameter of the model fits {pattern!r}; there are "
                    f"{', '.join(list(parameters)[:3])}, ...",
                    check="freeze-pattern",
                )
        for name in self._names(parameters):
            parameters[name].requires_grad_(False)
        if self.patterns and not any(parameter.requires_grad for parameter in parameters.values()):
            raise ConfigurationError(
                f"{FREEZE_KEY} leaves no parameter of the model to train; leave some out", check="nothing-to-train"
            )
        return model

    def names(self, model: nn.Module) -> frozenset[str]:
        """The tensors of a model that are frozen: one that is tied to a frozen one is, too."""
        tensors = model.state_dict(keep_vars=True)
        frozen = {id(tensors[name]) for name in self._names(tensors)}
        parameters = {id(parameter) for parameter in model.parameters()}
        return frozenset(name for name, tensor in tensors.items() if id(tensor) in frozen & parameters)

    def check(self, build: Callable[[], nn.Module]) -> None:
        """Raise ConfigurationError for an app whose frozen parameters come out differently each time."""
        if not self.patterns:
            return
        one, two = (dict(build().named_parameters(remove_duplicate=False)) for _ in range(2))
        for name in self._names(one):
            if not torch.equal(one[name], two[name]):
                raise ConfigurationError(
                    f"{FREEZE_KEY}: what is frozen stays as the app makes it on every client, and its model makes "
                    f"{name!r} differently each time; let it draw by a seed (fedcore.training.seeded), or read a file",
                    check="model-not-fixed",
                )

    def _names(self, names: Collection[str]) -> list[str]:
        return [name for name in names if any(fnmatchcase(name, pattern) for pattern in self.patterns)]


NOTHING: Final = Frozen(())

PREFIX = "personal_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Personal:
    """What stays on the client.

    patterns: names of parameters and buffers, with * and ?, that never leave it and are never overwritten, such as the
        head (FedPer, Arivazhagan et al. 2019).
    batch_norm: the same for all layers of batch normalisation (FedBN, Li et al. 2021).
    keep_model: keep the model as it was after the local training, fine-tuned, for use on the client.
    ditto: strength of the pull of a second, personal model towards the global one (Ditto, Li et al. 2021); 0 for none.
    """

    patterns: tuple[str, ...] = ()
    batch_norm: bool = False
    keep_model: bool = False
    ditto: float = 0.0

    def __post_init__(self) -> None:
        if self.ditto < 0:
            raise ConfigurationError(f"the pull of ditto cannot be {self.ditto}")
        if self.ditto and (self.parts or self.keep_model):
            raise ConfigurationError("ditto keeps a whole personal model; it goes with no other way of keeping one")

    @property
    def parts(self) -> bool:
        """Whether some tensors stay on the client."""
        return bool(self.patterns) or self.batch_norm

    @property
    def whole(self) -> bool:
        """Whether the client keeps a whole model in addition to the global one."""
        return self.keep_model or self.ditto > 0


def with_strategy(own: Personal, config: UserConfig) -> Personal:
    """`own` with what the strategy of the run config keeps on the client.

    "ditto": a second model, pulled towards the global one by `ditto-lambda`, 0.1 by default (Li et al. 2021, ICML,
    "Ditto"). "fedbn": all batch normalisation (Li et al. 2021, ICLR, "FedBN"). "fedper": the tensors that fit
    `personal-layers`, patterns with * and ? between commas (Arivazhagan et al. 2019). Raises ConfigurationError for
    "fedper" without patterns, and for a combination that means nothing.
    """
    match config.get("strategy"):
        case "ditto":
            strength = float(config.get(DITTO_KEY, _DITTO))
            if not 0 < strength < float("inf"):
                raise ConfigurationError(f"{DITTO_KEY} = {strength:g} does not fit strategy ditto")
            return replace(own, ditto=strength)
        case "fedbn":
            return replace(own, batch_norm=True)
        case "fedper":
            patterns = patterns_in(config, LAYERS_KEY)
            if not patterns:
                raise ConfigurationError(
                    f"strategy fedper keeps layers on the client, and {LAYERS_KEY} names none: set it to patterns such "
                    'as "head.*", with commas between them'
                )
            return replace(own, patterns=(*own.patterns, *patterns))
    return own


@dataclass(slots=True, kw_only=True)
class Personalization:
    """Carries out a `Personal` on one engine.

    shared: names of the tensors that come from the server and go to it.
    own: of those that stay.
    initial: the values of these when the engine was made, for a client that has kept nothing yet; None on ranks other
        than 0.
    averaged: whether the optimizer's state is shared, too.
    """

    engine: Engine
    personal: Personal
    shared: frozenset[str]
    own: frozenset[str]
    initial: ModelState | None
    averaged: bool

    @classmethod
    def of(cls, personal: Personal, engine: Engine, *, averaged: bool, adapter: bool, frozen: Frozen = NOTHING) -> Self:
        """Raises ConfigurationError for patterns that match nothing or all, and for an adapter that is all or none."""
        own: frozenset[str] = frozenset()
        if personal.parts:
            with torch.device("meta"):  # the whole model, of which a rank may hold a part only, for its names
                model = engine.recipe.build()
            own = frozenset(personal_names(model, personal.patterns, batch_norm=personal.batch_norm))
        if (adapter or frozen) and engine.config.engine == "pp":
            what = "an adapter" if adapter else "a model that is frozen in parts"
            raise ConfigurationError(f"{what} cannot be trained with engine pp; use fsdp or tp")
        names = {spec.name for spec in engine.layout().specs}
        local = own | frozen.names(engine.module) | (names - set(adapter_names(engine.module)) if adapter else set())
        shared = {
            spec.name for spec in engine.layout(optimizer=averaged).specs if _of_model(spec.name, names) not in local
        }
        initial = None
        if own:
            sink = MemorySink(engine.layout(only=own)) if engine.world.rank == 0 else None
            engine.save(sink, only=own)
            initial = sink.state() if sink is not None else None
        return cls(
            engine=engine,
            personal=personal,
            shared=frozenset(shared),
            own=own,
            initial=initial,
            averaged=averaged,
        )

    # --- around a training ----------------------------------------------------------------------------------------

    def prepare(
        self,
        model: ModelState | None,
        store: OwnModelStore,
        server_round: int,
        fit: Callable[[Proximal], Mapping[str, MetricValue]],
    ) -> None:
        """Put the model that is to be trained into the engine; with ditto, train the personal one with `fit` first."""
        if self.personal.ditto:
            self.load_shared(model)
            anchor = self.engine.snapshot()
            self._load_saved(store)
            metrics = fit(Proximal(mu=self.personal.ditto, anchor=anchor))
            self._save(store, server_round, metrics)
        self._receive(model, store)

    def keep(self, store: OwnModelStore, server_round: int, metrics: Mapping[str, MetricValue]) -> None:
        """After the training: keep what stays."""
        if self.own or self.personal.keep_model:
            self._save(store, server_round, metrics)

    def layout(self) -> Layout:
        """Of what goes to the server."""
        return self.engine.layout(optimizer=self.averaged, only=self.shared)

    def write(self, sink: StateSink | None) -> None:
        """Write what goes to the server; rank 0 gives the sink."""
        self.engine.save(sink, optimizer=self.averaged, only=self.shared)

    # --- around an evaluation -------------------------------------------------------------------------------------

    def evaluate(
        self, model: ModelState | None, store: OwnModelStore, test: Callable[[], Mapping[str, MetricValue]]
    ) -> dict[str, MetricValue]:
        """The metrics of the global model, and of the personal one in addition if the client keeps a whole one."""
        self._receive(model, store)
        metrics = dict(test())
        if not self.personal.whole:
            return metrics
        own = test() if self._load_saved(store) else metrics
        return metrics | {f"{PREFIX}{name}": value for name, value in own.items() if name != "num-examples"}

    # --- in and out -----------------------------------------------------------------------------------------------

    def load_shared(self, model: ModelState | None) -> None:
        """Put what was sent into the engine, in the dtypes of its tensors: a strategy may have changed them."""
        state = None if model is None else cast_to_layout(model, self.layout())
        self.engine.load(state, optimizer=self.averaged, only=self.shared)

    def _receive(self, model: ModelState | None, store: OwnModelStore) -> None:
        """The global tensors from the server, the client's own from its store."""
        self.load_shared(model)
        if self.own:
            exists, state = self._saved(store)
            saved = None if state is None else state.only(self.own)
            self.engine.load(saved if exists else self.initial, only=self.own)

    def _load_saved(self, store: OwnModelStore) -> bool:
        """Put the whole model of the client into the engine, if there is one."""
        exists, state = self._saved(store)
        if exists:
            self.engine.load(state)
        return exists

    def _saved(self, store: OwnModelStore) -> tuple[bool, ModelState | None]:
        """Whether the store has a model, and on rank 0 the model: another machine has no store."""
        state = store.load(self.engine.layout()) if self.engine.world.rank == 0 else None
        exists = torch.tensor(float(state is not None), device=self.engine.device)
        return bool(self.engine.world.sum(exists) > 0), state

    def _save(self, store: OwnModelStore, server_round: int, metrics: Mapping[str, MetricValue]) -> None:
        layout = self.engine.layout()
        if self.engine.world.rank != 0:
            self.engine.save(None)
            return
        names = (spec.name for spec in layout.specs)
        own = tuple(name for name in names if self.personal.whole or name in self.own)
        store.save(layout, self.engine.save, Provenance(server_round=server_round, personal=own, metrics=dict(metrics)))


def _of_model(name: str, names: Collection[str]) -> str:
    """The model's tensor that `name` belongs to: `optimizer.exp_avg.head.weight` belongs to `head.weight`."""
    return name if name in names else parameter_of(name)
