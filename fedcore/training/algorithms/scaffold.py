"""SCAFFOLD (Karimireddy et al. 2020, "Stochastic Controlled Averaging", ICML), section 3, algorithm 1, option II.

If clients differ, their local steps drift apart. Each keeps a control variate c_i, an estimate of its own gradient,
and all are sent their mean c. A local step descends g - c_i + c, an estimate of the federation's gradient. Afterwards

    c_i+ = c_i - c + (x - y_i) / L_i        L_i = eta K without momentum (`LocalAlgorithm.length`)

The second section comes with c and goes back with c + (c_i+ - c_i), so the mean of the clients' differences is the
paper's mean of (y_i - x, c_i+ - c_i). That mean is unweighted, so every client weighs 1. With momentum or a schedule
of rates (x - y_i) / L_i is still a weighted mean of the corrected gradients, and c_i+ the same mean of the client's
own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from fedcore.state.layout import CONTROL
from fedcore.training.algorithms.base import LocalAlgorithm, gradient
from fedcore.training.dtensors import local


class LocalScaffold(LocalAlgorithm):
    """Sent: c, and back c + c_i+ - c_i. Kept: c_i."""

    name: ClassVar[str] = "scaffold"
    section: ClassVar[str] = CONTROL
    keeps: ClassVar[bool] = True
    needs_sgd: ClassVar[bool] = True

    def _correct(self, parameters: Sequence[Tensor]) -> None:
        for name, index in self.indices():
            gradient(parameters[index]).add_(local(self._section[name])).sub_(local(self._state[name]))

    def _finish(self) -> dict[str, float]:
        for name, own, start in self.moves():
            control, state = local(self._section[name]), local(self._state[name])
            change = (start - own).div_(self.length).sub_(control)
            state.add_(change)
            control.add_(change)
        return {}
