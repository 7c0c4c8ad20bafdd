"""A site's part of a level: gradients and hessians of its rows as integers, and their sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import ConfigurationError
from fedcore.trees.cuts import NO_BIN
from fedcore.trees.settings import LOGISTIC, SOFTPROB


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Bits after the point of gradients and hessians as integers, the same at every site for a whole run.

    A sum over all rows stays below 2^40, what a query has room for, and so does any sum over some of them.
    """

    gradient_bits: int
    hessian_bits: int

    @classmethod
    def of(cls, gradients: float, hessians: float, room_bits: int = 40) -> Self:
        """The finest one for sums of absolute values that never exceed `gradients` and `hessians`.

        Raises ConfigurationError if they are no finite numbers above 0.
        """
        if not all(math.isfinite(bound) and bound > 0 for bound in (gradients, hessians)):
            raise ConfigurationError("the sums of gradients have no bound", check="gradient-bound")
        bits = (min(_MOST_BITS, room_bits - 1 - math.ceil(math.log2(bound))) for bound in (gradients, hessians))
        gradient_bits, hessian_bits = bits
        return cls(gradient_bits=gradient_bits, hessian_bits=hessian_bits)

    def floats(self, sums: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Gradients and hessians of integer sums [2, ...], each [...]."""
        wide = sums.astype(np.float64)
        return np.ldexp(wide[0], -self.gradient_bits), np.ldexp(wide[1], -self.hessian_bits)


_MOST_BITS = 32
"""More bits than a gradient has as a float32 are of no use."""


def sigmoid(margins: NDArray[np.float32]) -> NDArray[np.float32]:
    """XGBoost's, in float32."""
    one = np.float32(1)
    return one / (np.exp(np.minimum(-margins, np.float32(88.7))) + one + np.float32(1e-16))


def softmax(margins: NDArray[np.float32], floor: float = -math.inf) -> NDArray[np.float32]:
    """XGBoost's over the last axis, in float32 with a sum in double.

    Args:
        floor: the least that takes the place of the largest margin; its gradients have one.
    """
    largest = np.maximum(margins.max(axis=-1, keepdims=True), np.float32(floor))
    powers = np.exp(margins - largest)
    probabilities: NDArray[np.float32] = powers / powers.sum(axis=-1, keepdims=True, dtype=np.float64).astype(
        np.float32
    )
    return probabilities


def gradients(
    objective: str, margins: NDArray[np.float32], y: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """First and second derivative of the loss of each row, in float32 as XGBoost has them; each as the margins.

    Args:
        margins: [rows], or with several classes [rows, classes].
        y: targets, numbers of classes if there are several; [rows].
    """
    if objective == SOFTPROB:
        p = softmax(margins, float(np.finfo(np.float32).tiny))
        h = np.maximum(np.float32(2) * p * (np.float32(1) - p), np.float32(1e-16))
        p[np.arange(len(y)), y.astype(np.int64)] -= np.float32(1)
        return p, h
    if objective == LOGISTIC:
        p = sigmoid(margins)
        return p - y, np.maximum(p * (np.float32(1) - p), np.float32(1e-16))
    return margins - y, np.ones_like(margins)


def as_integers(values: NDArray[np.float32], bits: int) -> NDArray[np.int64]:
    """Rounded to multiples of 2^-bits, in these."""
    return np.rint(np.ldexp(values.astype(np.float64), bits)).astype(np.int64)


def histogram_sums(
    bins: NDArray[np.int32],
    position: NDArray[np.int64],
    nodes: NDArray[np.int64],
    values: tuple[NDArray[np.int64], NDArray[np.int64]],
    total_bins: int,
) -> NDArray[np.int64]:
    """Sums of both values over the rows of each node and bin; int64 [nodes, 2, total_bins]. Exact below 2^53.

    Args:
        bins: as `Cuts.bins_of`, [rows, features]; with some of the features `total_bins` is of these alone.
        position: the node of each row, [rows].
        nodes: the ones to sum over; rows of other nodes do not count.
        values: integers of the gradients and hessians, each [rows].
        total_bins: of all features together.
    """
    slots = np.full(int(max(position.max(initial=0), nodes.max(initial=0))) + 1, -1, np.int64)
    slots[nodes] = np.arange(len(nodes))
    slot = slots[position]
    rows = np.flatnonzero(slot >= 0)
    sums = np.zeros((len(nodes), 2, total_bins), np.int64)
    # Float64 holds every partial sum exactly, so the order of the rows does not matter.
    weights = [one[rows].astype(np.float64) for one in values]
    for feature in range(bins.shape[1]):
        column = bins[rows, feature]
        present = column != NO_BIN
        cells = slot[rows][present] * total_bins + column[present]
        for kind in (0, 1):
            counts = np.bincount(cells, weights[kind][present], minlength=len(nodes) * total_bins)
            sums[:, kind] += counts.astype(np.int64).reshape(len(nodes), total_bins)
    return sums
