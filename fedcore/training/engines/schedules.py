"""The orders in which a pipeline works through its micro-batches, and how long its ranks are idle in each.

With p ranks, the first micro-batch reaches the last rank after p - 1 others have worked on it, and its gradient takes
as long to come back: the bubble. "gpipe" does all forward passes first, and keeps the activations of all m
micro-batches. "1f1b" begins each backward pass as early as it can: the bubble is the same, but no rank keeps the
activations of more than p micro-batches. "interleaved" gives each rank v separate runs of layers: about a v-th of the
bubble, v times as much to send, and activations of some more micro-batches than with "1f1b".
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Literal, TypeAlias

from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from fedcore.errors import ConfigurationError

Schedule: TypeAlias = ScheduleGPipe | Schedule1F1B | ScheduleInterleaved1F1B
ScheduleName: TypeAlias = Literal["gpipe", "1f1b", "interleaved"]


def check_micro_batches(name: ScheduleName, *, ranks: int, micro_batches: int) -> None:
    """Raise ConfigurationError for a number of micro-batches that the schedule cannot order."""
    if name == "1f1b" and micro_batches < ranks:
        raise ConfigurationError(f"1f1b needs a micro-batch for each of {ranks} ranks, not {micro_batches}")
    if name == "interleaved" and micro_batches % max(1, micro_batches // ranks):
        raise ConfigurationError(
            f"the interleaved schedule cannot order {micro_batches} micro-batches on {ranks} ranks; use a multiple"
        )


def make_schedule(
    name: ScheduleName, stages: list[PipelineStage], micro_batches: int, loss: Callable[..., Tensor] | None
) -> Schedule:
    """The schedule of one rank's stages; without a loss it only goes forward."""
    if name == "interleaved":
        return ScheduleInterleaved1F1B(list(stages), micro_batches, loss_fn=loss, scale_grads=False)
    kind = ScheduleGPipe if name == "gpipe" else Schedule1F1B
    return kind(stages[0], micro_batches, loss_fn=loss, scale_grads=False)


def bubble_fraction(name: ScheduleName, *, ranks: int, micro_batches: int, runs: int = 2) -> Fraction:
    """The part of a step's time in which a rank is idle, if all stages take equally long and sending takes no time.

    (p - 1) / (m + p - 1) for "gpipe" (Huang et al. 2019, section 2.3) and "1f1b"; (p - 1) / (v m + p - 1) for
    "interleaved" with v `runs` of layers on each rank and m a multiple of p (Narayanan et al. 2021, section 2.2, who
    divide the idle time by the busy time instead: (p - 1) / (v m)).
    """
    turns = micro_batches * (runs if name == "interleaved" else 1)
    return Fraction(ranks - 1, turns + ranks - 1)
