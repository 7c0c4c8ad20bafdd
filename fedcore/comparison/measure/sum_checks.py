"""Whether secure sums are the plain means of the same updates, tensor by tensor.

The first training of a secure run is compared with that of a plain run from the same model and seed, or with an extra
round in which the same clients are asked the same and nothing is encrypted: the mean that the strategy gets, whatever
it makes of it. A first sum has fields of 32 bits or more, so a small part of the update is the bound
(`fedcore.codec.scaling.error_bound`). Later sums are narrower. The last one is compared with an extra round as well;
the codec lets a quarter of the norm of a tensor's update be rounding (`fedcore.codec.scaling.coarseness`).

If a sum exceeds its bound, plain is compared with plain: an app that draws numbers without a seed does not repeat
itself either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np

from fedcore.codec import Encoding
from fedcore.codec.scaling.coarseness import MOST_ROUNDING
from fedcore.codec.scaling.error_bound import ROUNDOFF, error_bound
from fedcore.flower.app import FlowerApp
from fedcore.flower.grid.training_means import TrainingMean, as_float
from fedcore.run.encoding_plan import EncodingPlan, codec_settings
from fedcore.run.exchange import make_work
from fedcore.run.settings import JobSettings
from fedcore.simulation.workers.executor import ClientExecutor
from fedcore.state import ModelState
from fedcore.system.files import private_folder
from fedcore.wire.base import Scalar

Which: TypeAlias = Literal["first", "last"]

COARSEST: Final = 1 / 64
"""Of the clients' largest change: a first sum whose error is larger is wrong, whatever its encoding would allow."""
CHANCE: Final = 10.0
"""If plain is apart from plain in any tensor, secure may be apart from it by so many times as much, for the change of
the tensor: by chance one of few elements may have come out alike."""
_SLACK: Final = 1.5
"""Over the standard error of rounding, which that of many elements hardly exceeds."""
_STORED: Final = 8
"""Roundings of a stored value that are let pass."""
_MOVED: Final = 1e-5
"""Of the change of the tensor that training moved most: less is rounding, in either model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGap:
    """How far two means of a tensor are apart, and may be; and how far the plain one is from the model before."""

    tensor: str
    difference: float
    bound: float
    change: float

    def excess(self, own: float = 0.0) -> float:
        """How many times as far apart as they may be.

        Args:
            own: how far plain is from plain.
        """
        allowed = max(self.bound, CHANCE * own)
        return self.difference / allowed if allowed else math.inf if self.difference else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SumVerdict:
    """How the comparison of two means ended; gap and own are of the worst tensor.

    compared: whether the other mean was that of a plain run.
    rounds: of plain that it took.
    """

    status: Literal["holds", "differs", "unknown"]
    reason: str = ""
    gap: TensorGap | None = None
    own: float | None = None
    compared: bool = False
    rounds: int = 0


@dataclass(slots=True, kw_only=True)
class PlainRounds:
    """Asks clients again what they were asked for a secure sum, and takes the plain mean.

    executor: has run nothing else.
    count: how many rounds it took so far.
    """

    app: FlowerApp
    run_config: dict[str, Scalar]
    settings: JobSettings
    executor: ClientExecutor
    count: int = 0

    def mean(self, secure: TrainingMean) -> TrainingMean | None:
        """The plain mean; None if the clients' models have none."""
        request = secure.request
        task = make_work(
            request,
            settings=self.settings,
            run="plain-round",
            exchange=1,
            app_sha256="0" * 64,
            run_config=self.run_config,
            model=None,
        )
        self.count += 1
        results = self.executor.run(task, request.model, request.nodes)
        states = ((result.state(), result.examples) for _, result in results)
        return TrainingMean.of_states(request, ((state, count) for state, count in states if state is not None))

    def keeps_state(self, secure: TrainingMean) -> bool:
        """Whether the clients that worked have something that they need in a later round."""
        with private_folder() as folder:
            return bool(self.executor.save(folder, secure.request.nodes))


def no_bound(settings: JobSettings, clients: int) -> str:
    """Why these settings let a secure sum be another than the plain mean; "" if they do not."""
    if codec_settings(settings, "train", clients).compresses:
        return "uploads are compressed, which leaves out parts of the updates"
    if settings.clip_norm or settings.clipping == "warn":
        return "updates are clipped"
    return ""


def check_sum(
    secure: TrainingMean, plain: TrainingMean | None, rounds: PlainRounds, *, which: Which = "first"
) -> SumVerdict | None:
    """Compare a secure sum with a plain mean; None for a last sum of clients that keep state, which cannot be repeated.

    Args:
        plain: of a plain run; None, or one from another model or of other clients, for an extra round.
        rounds: makes that, and another if they differ.
    """
    if reason := no_bound(rounds.settings, len(secure.request.nodes)):
        return SumVerdict(status="unknown", reason=reason)
    compared = plain is not None and _alike(secure, plain)
    if not compared:
        plain = rounds.mean(secure)
    if which == "last" and rounds.keeps_state(secure):
        return None
    if plain is None or plain.examples != secure.examples:
        return SumVerdict(status="unknown", reason="other clients answered", rounds=rounds.count)
    gaps = gaps_between(secure, plain, rounds.settings, which)
    worst = max(gaps, key=TensorGap.excess)
    if worst.excess() <= 1:
        return SumVerdict(status="holds", gap=worst, compared=compared, rounds=rounds.count)
    again = rounds.mean(secure)
    own = {} if again is None else {gap.tensor: gap for gap in gaps_between(again, plain, rounds.settings, which)}
    share = max((gap.difference / gap.change for gap in own.values() if gap.excess() > 1 and gap.change), default=0.0)
    worst = max(gaps, key=lambda gap: gap.excess(share * gap.change))
    differs = worst.excess(share * worst.change) > 1
    return SumVerdict(
        status="differs" if differs else "unknown",
        reason="" if differs else "the app does not repeat itself: two rounds of plain from the same model differ, too",
        gap=worst,
        own=own[worst.tensor].difference if worst.tensor in own else None,
        compared=compared,
        rounds=rounds.count,
    )


def gaps_between(one: TrainingMean, plain: TrainingMean, settings: JobSettings, which: Which) -> list[TensorGap]:
    """How far two means are apart, for every tensor."""
    if which == "last":
        return [_norm_gap(one, plain, name) for name in plain.base]
    bounds = _bounds(plain, settings)
    return [_element_gap(one, plain, name, bounds[name]) for name in plain.base]


def last_gap(secure: Path, plain: Path, start: Path) -> TensorGap | None:
    """The tensor in which two last models are the farthest apart, for its change since the start; None if unknown.

    A tensor that rounding alone moved in both, such as a bias before batch normalisation, is left out.
    """
    if not all(path.is_file() for path in (secure, plain, start)):
        return None
    mine, theirs, first = (ModelState.open(path) for path in (secure, plain, start))
    gaps = []
    for spec in first.layout.specs:
        if spec not in mine.layout.specs or spec not in theirs.layout.specs or not spec.is_float:
            continue
        values = [as_float(state, spec) for state in (mine, theirs, first)]
        change = float(np.linalg.norm(values[1] - values[2]))
        gaps.append(TensorGap(tensor=spec.name, difference=_norm(values[0], values[1]), bound=change, change=change))
    least = _MOVED * max((gap.change for gap in gaps), default=0.0)
    return max((gap for gap in gaps if max(gap.change, gap.difference) >= least), key=TensorGap.excess, default=None)


def _alike(secure: TrainingMean, plain: TrainingMean) -> bool:
    """Whether the same clients were asked to train the same model."""
    one, other = secure.request, plain.request
    same = one.nodes == other.nodes and secure.base.layout == plain.base.layout
    return same and all(np.array_equal(secure.base[name], plain.base[name]) for name in plain.base)


def _bounds(plain: TrainingMean, settings: JobSettings) -> dict[str, float]:
    """How far a first secure sum may be from the plain mean, by tensor."""
    base, clients = plain.base, len(plain.request.nodes)
    encoding = EncodingPlan(settings).encoding(plain.request.message_type, base.layout, clients)
    assert isinstance(encoding, Encoding)  # noqa: S101 - private runs have no such check
    share = plain.examples / encoding.settings.w_max * (1 + 2.0**-20)
    bounds = error_bound(
        encoding,
        survivors=clients,
        examples=plain.examples,
        base=base,
        magnitudes={name: share * largest for name, largest in plain.largest.items()},
    )
    for spec in base.layout.specs:
        if spec.is_float:
            largest = plain.largest[spec.name]
            stored = ROUNDOFF[spec.dtype] * (float(np.abs(as_float(base, spec)).max(initial=0.0)) + largest)
            bounds[spec.name] = min(bounds[spec.name], COARSEST * largest + _STORED * stored)
    return bounds


def _element_gap(one: TrainingMean, plain: TrainingMean, name: str, bound: float) -> TensorGap:
    mine, theirs, before = _values(one, plain, name)
    return TensorGap(tensor=name, difference=_largest(mine, theirs), bound=bound, change=_largest(theirs, before))


def _norm_gap(one: TrainingMean, plain: TrainingMean, name: str) -> TensorGap:
    mine, theirs, before = _values(one, plain, name)
    (spec,) = (spec for spec in plain.base.layout.specs if spec.name == name)
    change = _norm(theirs, before)
    if spec.is_float:
        bound = _SLACK * MOST_ROUNDING * change + _STORED * ROUNDOFF[spec.dtype] * float(np.linalg.norm(before))
    else:
        bound = 0.5 * math.sqrt(spec.size)
    return TensorGap(tensor=name, difference=_norm(mine, theirs), bound=bound, change=change)


def _values(one: TrainingMean, plain: TrainingMean, name: str) -> Sequence[np.ndarray]:
    """The two means and the model before, in float64."""
    return [
        as_float(state, next(spec for spec in state.layout.specs if spec.name == name))
        for state in (one.mean, plain.mean, plain.base)
    ]


def _apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """|one - other|; what is the same is not apart, even if it is no number; a number is far from none."""
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.nan_to_num(np.abs(one - other), nan=math.inf, posinf=math.inf))


def _largest(one: np.ndarray, other: np.ndarray) -> float:
    return float(_apart(one, other).max(initial=0.0))


def _norm(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(_apart(one, other)))
