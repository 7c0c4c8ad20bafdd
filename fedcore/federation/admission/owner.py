"""A client as admission sees it: its identity, its owner's policy, and the history of its exchanges."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, field_validator

from fedcore.codec import ScaleMemory
from fedcore.codec.privacy import Accountant
from fedcore.errors import EncodingError
from fedcore.federation import Policy, Roster
from fedcore.federation.near_models import ModelHistory
from fedcore.federation.transcript import NoisedSum
from fedcore.run.groups import GroupAssignmentRecord
from fedcore.state import Sketch
from fedcore.wire.tasks import Task


class Owner(Protocol):
    """A member of a federation and its owner's policy: a client's kit, or a simulated member."""

    @property
    def federation(self) -> str: ...
    @property
    def client_id(self) -> int: ...
    @property
    def roster(self) -> Roster: ...
    @property
    def policy(self) -> Policy: ...


class LedgerEntry(BaseModel):
    """Base of a ledger's entries about an exchange."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    run: str
    exchange: int


class AgreedSum(LedgerEntry):
    """This client agreed to a sum over `survivors`.

    purpose: the first part of the message type.
    model: its SHA-256, or "" for none and for a query.
    survivors: as `ids_to_text` writes them.
    scales: of the encoding, if they affect precision alone.
    bounds: SHA-256 over everything else that decides how it is rounded and bounded.
    question: `question_digest` of the task; "" in entries of before 0.2, which are compared by the rest. Of a query the
        name of the study plan's question that it belongs to, "" if there is no plan.
    """

    event: Literal["released"] = "released"
    purpose: str
    model: str
    survivors: str
    scales: tuple[float, ...]
    bounds: str
    question: str = ""


class ModelEntry(LedgerEntry):
    """This client has a model for a sum, before it sends anything that depends on its data.

    message_type: of the task.
    model: its SHA-256.
    seed: names the client's secret seed (`fedcore.state.Sketcher`).
    layout: of the sketch.
    sketch: `fedcore.state.Sketch.to_text`; "" if an earlier entry has it.
    """

    event: Literal["sketched"] = "sketched"
    message_type: str
    model: str
    seed: str = ""
    layout: str = ""
    sketch: str = ""

    @field_validator("sketch")
    @classmethod
    def _is_intact(cls, text: str) -> str:
        try:
            return Sketch.from_text(text, seed="", layout="").to_text() if text else text
        except EncodingError as error:
            raise ValueError(str(error)) from None

    @classmethod
    def of(cls, task: Task, sketch: Sketch | None) -> Self:
        """The entry of a task's model.

        Args:
            sketch: of the model, None if an earlier entry has it or there are no elements to tell a distance by.
        """
        entry = cls(run=task.run, exchange=task.exchange, message_type=task.message_type, model=task.subject_model)
        if sketch is None:
            return entry
        return entry.model_copy(update={"seed": sketch.seed, "layout": sketch.layout, "sketch": sketch.to_text()})

    def apply(self, models: ModelHistory) -> None:
        """Add the model to those that are known."""
        if self.sketch:
            models.book.add(self.model, Sketch.from_text(self.sketch, seed=self.seed, layout=self.layout))
        models.add(self.run, self.message_type, self.model)


class ClientHistory(Protocol):
    """What one client remembers of earlier exchanges: the agent's ledger, or the simulator's, which is in memory."""

    def entered_in(self, run: str) -> int:
        """How many exchanges of a run were entered."""
        ...

    def entered_in_a_day(self) -> int:
        """How many exchanges were entered in the last 24 hours."""
        ...

    def enter(self, run: str, exchange: int) -> None:
        """Use up an exchange's number, before its first message."""
        ...

    def released(self, purpose: str, model: str) -> Sequence[AgreedSum]:
        """The sums of one purpose and model that this client agreed to."""
        ...

    def release(self, released: AgreedSum) -> None:
        """Note that this client is about to agree to a sum."""
        ...

    @property
    def attempts(self) -> tuple[NoisedSum, ...]:
        """The noised sums that this client's update went to, without those that are returned."""
        ...

    def spent(self, *, without: Collection[NoisedSum] = (), rows: bool = False) -> Accountant:
        """What all these sums may reveal about this client; with `rows` about a row, noise for rows alone included."""
        ...

    def spend(self, attempt: NoisedSum) -> None:
        """Note that a noised update is about to leave this client."""
        ...

    def refund(self, attempt: NoisedSum) -> None:
        """Note that it is proven that the sum of this attempt was never unmasked."""
        ...

    def drawn(self, run: str) -> GroupAssignmentRecord | None:
        """The last draw of a run that this client answered."""
        ...

    def draws(self, purpose: str, model: str) -> int:
        """How many draws for one purpose and model this client answered, in all runs."""
        ...

    def draw(self, drawn: GroupAssignmentRecord) -> None:
        """Note that this client is about to answer a draw."""
        ...

    def scales(self, run: str, layout: str) -> ScaleMemory | None:
        """What is remembered of the scales of a model's layout in a run."""
        ...

    def remember_scales(self, run: str, layout: str, memory: ScaleMemory) -> None:
        """Note the scales of an exchange."""
        ...


def ids_to_text(ids: Iterable[int]) -> str:
    """Client ids as ranges: "1-50,53"."""
    ordered = sorted(ids)
    starts = [0, *(index for index, (one, two) in enumerate(pairwise(ordered), start=1) if two != one + 1)]
    ends = [*(start - 1 for start in starts[1:]), len(ordered) - 1]
    ranges = [(ordered[start], ordered[end]) for start, end in zip(starts, ends, strict=True)] if ordered else []
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)


def ids_from_text(text: str) -> frozenset[int]:
    """The inverse of `ids_to_text`."""
    ids: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        ids.update(range(int(first), int(last or first) + 1))
    return frozenset(ids)
