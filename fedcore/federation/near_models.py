"""Which models are nearly the same: they lie apart by less than a fraction of a step of training.

Two sums of one model tell their difference; two sums of nearly one model tell it nearly. How nearly depends on how far
the models lie apart, measured in steps: an update changes at most about as much as its model does. A step from a model
is the distance to the next model of the same run and message type, or, as long as there is none, the distance from the
one before it. So two models in a row are a whole step apart, however short the steps become as training goes on:
honest rounds, one after the other, are never nearly the same.

What counts is what one client has had itself: only from its own sketches (`fedcore.state.sketch`) can it tell
distances. Nothing here depends on its data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from fedcore.state import Sketch

_NO_STEP: Final = 0.0


@dataclass(slots=True)
class SketchBook:
    """Sketches by the SHA-256 of their models; the clients of a simulation, which have one seed, share a book."""

    sketches: dict[str, Sketch] = field(default_factory=dict, init=False)
    _from: str = ""
    _distances: dict[str, float] = field(default_factory=dict)
    """To other models from `_from`, since all clients of a cohort ask about the same one."""

    def knows(self, model: str, seed: str) -> bool:
        """Whether there is a sketch of a model by this seed."""
        return model in self.sketches and self.sketches[model].seed == seed

    def add(self, model: str, sketch: Sketch) -> None:
        """Take in a sketch; one of another seed takes the place of the one before."""
        if not self.knows(model, sketch.seed):
            self.sketches[model] = sketch
            self._from = ""

    def layout(self, model: str) -> str:
        """The layout of a model, "" if there is no sketch of it."""
        return self.sketches[model].layout if model in self.sketches else ""

    def distance(self, model: str, other: str) -> float:
        """The distance of two models, infinite if that is not known."""
        if model not in self.sketches or other not in self.sketches:
            return math.inf
        if self._from != model:
            self._from, self._distances = model, {}
        if other not in self._distances:
            self._distances[other] = self.sketches[model].distance(self.sketches[other])
        return self._distances[other]


@dataclass(slots=True)
class ModelHistory:
    """The models that one client has had for sums, in the order of its exchanges."""

    book: SketchBook = field(default_factory=SketchBook)
    _models: set[str] = field(default_factory=set)
    _last: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """By run, message type and layout."""
    _onward: dict[str, dict[str, float]] = field(default_factory=dict)
    """By model and message type, the largest step from it to a next model, of all runs."""
    _inward: dict[str, dict[str, float]] = field(default_factory=dict)
    """Likewise the largest step that led to it."""

    def is_last(self, run: str, message_type: str, model: str) -> bool:
        """Whether this is the model that a run had last."""
        return self._last.get((run, message_type, self.book.layout(model))) == model

    def add(self, run: str, message_type: str, model: str) -> None:
        """Note that a run has a model now; its sketch is in the book, if there is one."""
        line = run, message_type, self.book.layout(model)
        before, self._last[line] = self._last.get(line), model
        self._models.add(model)
        if before is None or before == model:
            return
        step = self.book.distance(model, before)
        if math.isfinite(step):
            for steps, end in ((self._onward, before), (self._inward, model)):
                known = steps.setdefault(end, {})
                known[message_type] = max(step, known.get(message_type, _NO_STEP))

    def near(self, message_type: str, model: str, within: float) -> frozenset[str]:
        """The other models that lie within this fraction of a step; of the two models' steps the smaller one.

        With the larger one a run whose first step was long would come near its beginning later, where steps are short.
        """
        step = self._step(message_type, model)
        return frozenset(
            other
            for other in self._models
            if other != model
            and self.book.distance(model, other) <= within * _smaller(step, self._step(message_type, other))
        )

    def _step(self, message_type: str, model: str) -> float:
        """The step from a model, or _NO_STEP.

        The last model of a run may only have been evaluated there: then the steps of other message types count.
        """
        known = [steps[model] for steps in (self._onward, self._inward) if model in steps]
        for steps in known:
            if message_type in steps:
                return steps[message_type]
        return max(known[0].values()) if known else _NO_STEP


def _smaller(*steps: float) -> float:
    """Of those that are known; if none is, only models with the same elements are near."""
    return min((step for step in steps if step > _NO_STEP), default=_NO_STEP)
