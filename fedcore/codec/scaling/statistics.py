"""Statistics of a round about the magnitudes of its updates.

A scale must cover the largest |w * delta| of any client. For each large tensor the sum tells on which rung of a ladder
of powers of two that is (`ladder`), and nothing else of the clients' magnitudes. Beyond the scale the ladder goes to
2^14 times as much; in a first exchange, whose scale is generous, to 2^9, and what is far below it is told as well.

Of small tensors the sum tells only whether any element exceeded their scale. Their next scale follows from the largest
element of their mean, which is public; it has so much room that nothing more is needed.

Words that no honest clients can have summed up to are refused. If updates are not clipped (`CodecSettings.clips`)
those whose update fits its scales tell no more than the scales, so what is more is of those that say `large`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fedcore.codec.encoding import Encoding
from fedcore.codec.scaling.ladder import Ladder
from fedcore.errors import PeerError

T = TypeVar("T")


def power_of_two(value: float) -> float:
    """The smallest power of two that is not below `value`; 0 for 0."""
    fraction, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - (fraction == 0.5)) if 0 < value < math.inf else value


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnitudeStatistics:
    """What the sum of one round says about magnitudes; one entry for each scale.

    contributors
        Survivors that did not fail, of whom all of this is.
    failures
        Survivors that contributed nothing, whatever the reason.
    scales
        The scales that the round used.
    peaks
        Upper bound on the largest |w * delta| of any contributor, for a large tensor; 0 if nothing changed. For the
        small ones the largest |sum of w * delta|, 0 if the sum is locked.
    measured
        Whether the peak is no more than the next power of two: there is an end to what a sum can tell.
    saturated
        Whether a client may have exceeded what the sum can tell.
    clipped
        Elements that exceeded the scale, over all contributors; or, if elements are not clipped, 1 if any did.
    shrunk
        Contributors whose update the L2 clip shrank; 0 for a sum that is locked.
    moved
        Root mean square of the sum of w * delta over the elements that changed; 0 for small tensors and if nothing
        is known. Empty for a sum that is locked.
    """

    contributors: int
    failures: int
    field_bits: int
    scales: tuple[float, ...]
    peaks: tuple[float, ...]
    measured: tuple[bool, ...]
    saturated: tuple[bool, ...]
    clipped: tuple[int, ...]
    shrunk: int
    moved: tuple[float, ...] = ()


def joined(parts: Sequence[MagnitudeStatistics]) -> MagnitudeStatistics:
    """What the sums of disjoint groups say together, at one set of scales: as one sum over all of them would."""
    first = parts[0]

    def over(values: Callable[[MagnitudeStatistics], tuple[T, ...]], fold: Callable[[Iterable[T]], T]) -> tuple[T, ...]:
        return tuple(fold(column) for column in zip(*map(values, parts), strict=True))

    return (
        MagnitudeStatistics(
            contributors=sum(part.contributors for part in parts),
            failures=sum(part.failures for part in parts),
            field_bits=max(part.field_bits for part in parts),
            scales=over(lambda part: part.scales, max),
            peaks=over(lambda part: part.peaks, max),
            measured=over(lambda part: part.measured, all),
            saturated=over(lambda part: part.saturated, any),
            clipped=over(lambda part: part.clipped, sum),
            shrunk=sum(part.shrunk for part in parts),
            # Each group's sum has to be fine enough by itself, so the one that moved least decides.
            moved=over(lambda part: part.moved, min),
        )
        if len(parts) > 1
        else first
    )


def read_statistics(
    encoding: Encoding,
    *,
    contributors: int,
    failures: int,
    large: int,
    peaks: Sequence[int],
    clipped: Sequence[int],
    shrunk: int,
) -> MagnitudeStatistics:
    """Statistics from the summed words. Raises PeerError when a sum is more than clients can send.

    Args:
        clipped: how many elements were, by scale; empty if none is to be.
    """
    _check_counts(encoding, contributors, large, clipped, shrunk)
    ladders, rungs = encoding.ladders, read_rungs(encoding, peaks)
    beyond = [rung > ladder.fitting for rung, ladder in zip(rungs, ladders, strict=True)]
    if not large and not encoding.settings.clips and any(beyond):
        raise _malformed(encoding, beyond.index(True))
    if large and not any(beyond):  # every one of them reads as a rung too low
        rungs = [rung + (rung == ladder.fitting) for rung, ladder in zip(rungs, ladders, strict=True)]
        beyond = [rung > ladder.fitting for rung, ladder in zip(rungs, ladders, strict=True)]
    steps = list(zip(ladders, rungs, strict=True))
    return MagnitudeStatistics(
        contributors=contributors,
        failures=failures,
        field_bits=encoding.field_bits,
        scales=encoding.scales,
        peaks=tuple(
            0.0 if group.small else ladder.top_of(rung) * scale
            for group, (ladder, rung), scale in zip(encoding.groups, steps, encoding.scales, strict=True)
        ),
        measured=tuple(group.small or _is_exact(*step) for group, step in zip(encoding.groups, steps, strict=True)),
        saturated=tuple(rung == len(ladder.tops) for ladder, rung in steps),
        clipped=tuple(clipped) if encoding.settings.clips else tuple(map(int, beyond)),
        shrunk=shrunk,
    )


def read_rungs(encoding: Encoding, words: Sequence[int]) -> list[int]:
    """The rung for each scale, from the words of the section `peaks`."""
    rungs, start = [], 0
    for ladder in encoding.ladders:
        rungs.append(ladder.read(words[start : start + ladder.words]))
        start += ladder.words
    return rungs


def _is_exact(ladder: Ladder, rung: int) -> bool:
    """Whether the rung below is half as high."""
    return rung > 1 and ladder.top_of(rung) == 2 * ladder.top_of(rung - 1)


def _check_counts(encoding: Encoding, contributors: int, large: int, clipped: Sequence[int], shrunk: int) -> None:
    if large > (0 if encoding.settings.clips else contributors):
        raise PeerError(
            "more clients than can be report an update that is too large: one sent a malformed one",
            check="malformed-update",
        )
    if shrunk > contributors:
        raise PeerError(
            "more clients than survived report a clipped update: one sent a malformed one", check="malformed-update"
        )
    for index, count in enumerate(clipped):
        if count > contributors * encoding.groups[index].size:
            raise _malformed(encoding, index)


def _malformed(encoding: Encoding, index: int) -> PeerError:
    label = encoding.groups[index].label
    return PeerError(
        f"the statistics of {label} are out of range: a client sent a malformed update", check="malformed-update"
    )
