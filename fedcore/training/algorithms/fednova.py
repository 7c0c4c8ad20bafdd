"""FedNova (Wang et al. 2020, "Tackling the Objective Inconsistency Problem", NeurIPS), section 4, equation 11.

Clients that take more steps, or longer ones, pull the mean of their models towards their own optimum. So each divides
its update by its length L_i = eta ||a_i||_1, and the server multiplies their mean by the mean length:

    x <- x + (sum_i p_i L_i) (sum_i p_i (x_i - x) / L_i)          p_i = n_i / n

Both sums are weighted means over the clients, the second of a metric, so both are exact inside one weighted sum. (An
update times its client's share of tau_eff would not be: no client knows tau_eff.) With one learning rate on all clients
this is the paper's rule, in which eta stands apart: tau_eff = sum_i p_i ||a_i||_1. Buffers are averaged as they are.
"""

from __future__ import annotations

from typing import ClassVar, Final

from fedcore.training.algorithms.base import LocalAlgorithm

LENGTH: Final = "local_length"


class LocalFedNova(LocalAlgorithm):
    """Gives back x + (x_i - x) / L_i, and L_i as a metric."""

    name: ClassVar[str] = "fednova"
    needs_sgd: ClassVar[bool] = True

    def _finish(self) -> dict[str, float]:
        for _, own, start in self.moves():
            own.sub_(start).div_(self.length).add_(start)
        return {LENGTH: self.length}
