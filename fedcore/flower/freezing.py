"""Parameters that a run leaves as the app makes them: `freeze = "features.*"` in the run config.

They are not trained and never travel. Every client and the server make them for themselves, so the app's `model` has to
make the same each time, from a seed or from a file that all have. Buffers, such as running means, are no parameters:
they travel as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Self

import torch
from flwr.app import UserConfig
from torch import nn

from fedcore.errors import ConfigurationError

FREEZE_KEY: Final = "freeze"


def patterns_in(config: UserConfig, key: str) -> tuple[str, ...]:
    """Patterns of names with * and ?, which stand in the run config with commas between them."""
    return tuple(part.strip() for part in str(config.get(key, "")).split(",") if part.strip())


@dataclass(frozen=True, slots=True)
class Frozen:
    """Which parameters are left alone. patterns: of their names, () for none."""

    patterns: tuple[str, ...]

    @classmethod
    def of(cls, config: UserConfig) -> Self:
        """As the run config has it."""
        return cls(patterns_in(config, FREEZE_KEY))

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def applied(self, model: nn.Module) -> nn.Module:
        """The model, its frozen parameters without gradients.

        Raises ConfigurationError for a pattern that no parameter fits, and where nothing would be left to train.
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
