"""What a model's output is worth: losses of single examples, predictions, and counts over a data set.

Three shapes of output are known everywhere, with integer targets:

    logits [n, classes]           targets [n]
    one logit [n, 1]              targets [n], 0 or 1
    logits [n, length, classes]   targets [n, length], where IGNORED marks a position without a target
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedcore.errors import UsageError

IGNORED = -100
"""The target that counts for nothing, as in torch's cross entropy."""

_HALF = (torch.float16, torch.bfloat16)


def per_example_cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of each example, float [n]; float32 where the model answers in 16 bits.

    Of a sequence it is the mean over its counted positions, and 0 if it has none. The mean of single examples' losses
    is the same however they are divided into batches and ranks. Raises UsageError for shapes that do not belong
    together.
    """
    losses = _cross_entropy(output, targets)
    if losses.dim() == 1:
        return losses
    counted = (targets != IGNORED).sum(dim=1)
    return losses.sum(dim=1) / counted.clamp(min=1)


def predicted(output: Tensor) -> Tensor:
    """The most likely class at each position, int64 [n] or [n, length]."""
    if _is_one_logit(output):
        return (output.squeeze(1) > 0).long()
    return output.argmax(dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Sums over counted targets: the labels of the examples, or the positions of the sequences.

    Tallies of parts add up to the tally of the whole. loss: sum of cross entropies. correct: right predictions.
    """

    targets: int = 0
    loss: float = 0.0
    correct: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            targets=self.targets + other.targets, loss=self.loss + other.loss, correct=self.correct + other.correct
        )

    @property
    def accuracy(self) -> float:
        """Share of right predictions, 0 to 1; 0 if nothing was counted."""
        return self.correct / max(self.targets, 1)


def tally(output: Tensor, targets: Tensor) -> Tally:
    """Count a batch. Raises UsageError for shapes that do not belong together."""
    loss = _cross_entropy(output, targets).sum(dtype=torch.float64)
    # No class is IGNORED, so a position without a target is never right.
    correct = predicted(output) == targets
    return Tally(targets=int((targets != IGNORED).sum()), loss=float(loss), correct=int(correct.sum()))


def as_features(x: Tensor) -> Tensor:
    """Grey levels (uint8, 0 to 255) become float32 in [0, 1]; other features stay as they are."""
    return x.float() / 255 if x.dtype == torch.uint8 else x


def _cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy at each position, in the shape of `targets`, 0 where the target is IGNORED."""
    if output.shape[:-1] != targets.shape or output.dim() not in (2, 3):
        raise UsageError(
            f"a model's output of shape {list(output.shape)} does not fit targets of shape {list(targets.shape)}: "
            "targets have one dimension less, without the classes"
        )
    # A sum over 16-bit losses would lose most of their digits.
    logits = output.float() if output.dtype in _HALF else output
    if _is_one_logit(logits):
        return functional.binary_cross_entropy_with_logits(
            logits.squeeze(1), targets.to(logits.dtype), reduction="none"
        )
    # Cross entropy wants the classes second: [n, classes] or [n, classes, length].
    return functional.cross_entropy(logits.movedim(-1, 1), targets, ignore_index=IGNORED, reduction="none")


def _is_one_logit(output: Tensor) -> bool:
    return output.dim() == 2 and output.shape[1] == 1
