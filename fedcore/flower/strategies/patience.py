"""Ends a run early whose test loss falls no more, and says where the loss was least.

It goes by the clients' mean test loss, which the strategy gets anyway; with differential privacy that mean is noised
and paid for, so that going by it costs nothing more (Dwork and Roth 2014, section 2.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from flwr.app import ArrayRecord, MetricRecord, UserConfig

from fedcore.errors import ConfigurationError, EnoughFound
from fedcore.flower.apps.server_tests import EvaluateFn
from fedcore.flower.strategies.metrics import MetricAggregation, Value

KEY: Final = "patience"
"""Of the run config: rounds in a row without a lower test loss after which the run ends; 0 or nothing for never."""
_LOSS: Final = "eval_loss"
_FALL: Final = 1e-4
"""A loss that is lower by less than this share has not fallen: the rounding of secure sums moves it by less."""
_RISE: Final = 0.01
"""A loss that is higher than the least one by less than this share of it counts as no rise."""


class LossFallsNoMore(EnoughFound):
    """The patience of a run is over."""


@dataclass(slots=True)
class LossHistory:
    """The test losses of a run.

    patience: rounds without a lower loss that are waited for; 0 to go on to the end.
    losses: by evaluation, from the first one on.
    """

    patience: int = 0
    losses: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, config: UserConfig) -> LossHistory:
        """As the run config has it; raises ConfigurationError for a negative number."""
        patience = int(config.get(KEY, 0))
        if patience < 0:
            raise ConfigurationError(
                f"{KEY} is a number of rounds, not {patience}; 0 to train all of them", check="patience"
            )
        return cls(patience)

    def watching(self, aggregation: MetricAggregation) -> MetricAggregation:
        """The same aggregation, whose test losses are noted here."""
        return MetricAggregation((*aggregation.steps, self._note))

    def limiting(self, test: EvaluateFn | None) -> EvaluateFn | None:
        """What the strategy calls after each evaluation; it raises LossFallsNoMore when the patience is over."""
        if not self.patience:
            return test

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            result = test(server_round, arrays) if test is not None else None
            if self.rounds_since_least >= self.patience:
                raise LossFallsNoMore(f"the test loss has not fallen for {self.patience} rounds")
            return result

        return evaluate

    @property
    def rounds_since_least(self) -> int:
        """Evaluations after the last one whose loss had fallen."""
        least, since = math.inf, 0
        for loss in self.losses:
            fell = math.isinf(least) or loss < least - _FALL * abs(least)
            least, since = (loss, 0) if fell else (least, since + 1)
        return since

    def hint(self) -> str:
        """A sentence if the test loss rises at the end, else nothing."""
        if not self.rounds_since_least or not self.losses[-1] > min(self.losses) * (1 + _RISE):
            return ""
        least = min(self.losses)
        return (
            f"the test loss was least in evaluation {self.losses.index(least) + 1} of {len(self.losses)} ({least:.4f}) "
            f"and has risen to {self.losses[-1]:.4f}: the model learns its training examples by heart. Take the best "
            "model (best-model), fewer rounds, a smaller learning rate or a smaller model"
        )

    def _note(self, means: Mapping[str, Value], weight: float) -> Mapping[str, Value | None]:
        del weight
        loss = means.get(_LOSS)
        if isinstance(loss, int | float) and math.isfinite(loss):
            self.losses.append(float(loss))
        return {}
