"""The interface of the algorithms, and the length of a client's way from its start."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from fedcore.errors import AppError, ConfigurationError
from fedcore.training.dtensors import local
from fedcore.training.engines import Engine, LocalRule
from fedcore.training.engines.transfer import Entry

STEPS: Final = "local_steps"
"""The metric that says how many steps a client took; it is in the mean of every algorithm's clients."""
_ENGINES = frozenset({"single", "ddp"})
"""Those on which every rank has the whole model."""


class LocalAlgorithm(LocalRule):
    """One training of one client. Every rank makes one, and makes the same calls in the same order.

    name: of the strategy.
    section: prefix of the tensors that travel with the model, "" for none; there is one for each federated parameter.
    keeps: whether the client keeps a tensor for each of them from round to round.
    needs_sgd: whether the optimizer has to be SGD with fresh momentum.
    """

    name: ClassVar[str]
    section: ClassVar[str] = ""
    keeps: ClassVar[bool] = False
    needs_sgd: ClassVar[bool] = False

    def __init__(self, engine: Engine, federated: Collection[str], settings: Mapping[str, Any]) -> None:
        self.engine, self.settings = engine, settings
        self._named = {
            name: index
            for index, (name, parameter) in enumerate(
                (name, p) for name, p in engine.module.named_parameters() if p.requires_grad
            )
            if name in federated
        }
        self.steps = 0
        self._travelled = 0.0
        self._velocity = 0.0
        self._check()
        parameters = dict(engine.module.named_parameters())
        self._section = {name: torch.zeros_like(parameters[name].detach()) for name in self._named if self.section}
        self._state = {name: torch.zeros_like(parameters[name].detach()) for name in self._named if self.keeps}
        self._start: list[Tensor] = []

    def _check(self) -> None:
        if self.engine.config.engine not in _ENGINES:
            raise ConfigurationError(
                f"strategy {self.name} cannot be trained with engine {self.engine.config.engine}; use "
                f"{', '.join(sorted(_ENGINES))}"
            )
        if self.needs_sgd:
            _rate_and_momentum(self.engine.optimizer, self.name)

    # --- what travels and what stays ------------------------------------------------------------------------------

    def section_entries(self) -> list[Entry]:
        """The second section; loaded before `begin`, written after `finish`."""
        return [Entry.of(f"{self.section}{name}", tensor) for name, tensor in self._section.items()]

    def state_entries(self) -> list[Entry]:
        """What the client keeps; loaded before `begin` if there is anything yet, written after `finish`."""
        return [Entry.of(name, tensor) for name, tensor in self._state.items()]

    # --- a training -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The engine holds the model that was sent: the steps begin."""
        self._start = self.engine.snapshot()

    def correct(self, parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> None:
        """Count the step, and change the gradients as the algorithm does."""
        self.steps += 1
        if self.needs_sgd:
            rate, momentum, nesterov = _rate_and_momentum(optimizer, self.name)
            self._velocity = momentum * self._velocity + 1
            self._travelled += rate * (1 + momentum * self._velocity if nesterov else self._velocity)
        with torch.no_grad():
            self._correct(parameters)

    @torch.no_grad()
    def finish(self) -> dict[str, float]:
        """After the last step: what is given back is in place. Returns metrics.

        Raises AppError if no step was taken under this rule.
        """
        if not self.steps:
            raise AppError(
                f"strategy {self.name} changes the local steps, and the app's training made none with it: pass "
                "rule=job.rule on to fedcore.training.train, or to every Engine.step",
                check="rule-unused",
            )
        return {STEPS: float(self.steps), **self._finish()}

    def _correct(self, parameters: Sequence[Tensor]) -> None:
        """Change the gradients; by default not at all."""

    @abstractmethod
    def _finish(self) -> dict[str, float]:
        """Change the model, the second section and what is kept, in place; returns further metrics."""

    # --- for the algorithms ---------------------------------------------------------------------------------------

    @property
    def length(self) -> float:
        """The sum of the weights that the gradients of all steps have in the way from the first to the last model.

        With SGD the model moves by -sum_k (eta a_k) g_k; this is eta ||a||_1 of Wang et al. (2020), section 4.1: eta
        times the steps without momentum, and more with it. Counted step by step, so a schedule of rates is in it.
        """
        return self._travelled

    def indices(self) -> Iterator[tuple[str, int]]:
        """The federated parameters: name, and place in `Engine.parameters`."""
        yield from self._named.items()

    def moves(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name, this rank's part of the parameter, which may be changed, and of where it began."""
        parameters = self.engine.parameters()
        for name, index in self._named.items():
            yield name, local(parameters[index].detach()), self._start[index]


def gradient(parameter: Tensor) -> Tensor:
    """This rank's part of the gradient, made dense; zeros if the loss did not reach the parameter."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    elif parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_dense()
    return local(parameter.grad)


def _rate_and_momentum(optimizer: torch.optim.Optimizer, name: str) -> tuple[float, float, bool]:
    """Learning rate, momentum and whether it is Nesterov's; ConfigurationError for what is no such SGD."""
    groups = optimizer.param_groups
    kinds = {(float(g["lr"]), float(g.get("momentum", 0)), bool(g.get("nesterov", False))) for g in groups}
    plain = isinstance(optimizer, torch.optim.SGD) and not any(g["dampening"] or g["maximize"] for g in groups)
    if not plain or len(kinds) != 1:
        raise ConfigurationError(
            f"strategy {name} counts how far each gradient moves the model, and knows that for SGD with one learning "
            f"rate and momentum, without dampening; the app's optimizer is another {type(optimizer).__name__}. Use "
            "sgd, or a strategy that leaves the optimizer free (fedavg, fedprox, feddyn, diloco, ...)",
            check="optimizer-unknown",
        )
    return kinds.pop()
