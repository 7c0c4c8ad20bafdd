"""What the exchanges of a run have told and cost so far: folded over their ends, live and after a restart alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedcore.codec import joined, release_of
from fedcore.codec.privacy import PrivacyBudget
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.model_selection import BestRule
from fedcore.run.settings import JobSettings
from fedcore.secagg import Fault
from fedcore.wire.control import KeptTask, Task
from server_app.exchanges.outcome import ExchangeOutcome, StoredSum
from server_app.exchanges.secure import UNMASK
from server_app.storage.tables import ExchangeRow


class RunState:
    """The encodings to come, the privacy budget, who cheated, and how many exchanges and rounds there were.

    told: the configurations that went with the last training. spent: of a buffered run, as in `WorkBook`. best: what
    the best evaluation so far gave, by `rule`. unjudged: what is to be said if the ServerApp does not find the rule's
    metric either; empty where it need not.
    """

    def __init__(self, settings: JobSettings, least_cohort: int) -> None:
        self.encodings = EncodingPlan(settings, least_cohort)
        self.budget = PrivacyBudget(self.encodings.privacy)
        self.blamed: dict[int, Fault] = {}
        self.count = 0
        self.rounds = 0
        self.told: dict[str, dict[str, Any]] = {}
        self._groups: dict[str, list[tuple[Task, StoredSum]]] = {}
        """Of the draw whose groups came last: their sums."""
        self.rule = BestRule.parse(settings.best_model)
        self.best: float | None = None
        self.unjudged = ""
        self.spent: dict[int, int] = {}

    def next_exchange(self) -> int:
        """The number of an exchange that is about to be opened."""
        self.count += 1
        return self.count

    def take_rows(self, rows: Sequence[ExchangeRow]) -> None:
        """Exchanges of earlier steps; one that never came to its end has cost what it may have told."""
        for row in rows:
            self.count = max(self.count, row.exchange)
            task = KeptTask.model_validate(row.task)
            if row.result is not None:
                self.take(task, ExchangeOutcome.from_json(row.result))
            elif row.stage == UNMASK:
                self.budget.spend(release_of(task.encoding))
        self.take_groups()

    def judged(self, task: Task, end: ExchangeOutcome) -> float | None:
        """What an evaluation says of the model that it was asked of; None where nothing is chosen by it."""
        evaluates = not task.trains and not task.queries and end.failure is None
        if self.rule is None or end.total is None or not evaluates:
            return None
        return self.rule.value(end.total.metrics)

    def take(self, task: Task, end: ExchangeOutcome) -> None:
        """One more exchange has ended."""
        self.count = max(self.count, task.exchange)
        self.blamed.update(end.blamed)
        if task.buffer is not None:
            starts = dict(zip(task.cohort, task.buffer.starts, strict=True))
            self.spent.update({client: starts[client].number for client in end.survivors})
        value = self.judged(task, end)
        if self.rule is not None and self.rule.beats(value, self.best):
            self.best = value
        encoding = task.encoding
        if end.unmasked or end.total is not None:  # shares were asked for: the sum may be known, also after a failure
            self.budget.spend(release_of(encoding))
        if end.failure is None:
            counted = task.group is not None and task.group.draw in self._groups
            self.rounds += task.trains and bool(end.survivors) and not counted
            self.told = task.configs if task.trains else self.told
        if encoding is None:
            return
        if end.total is not None and task.group is not None:
            if task.group.draw not in self._groups:
                self.take_groups()
            self._groups.setdefault(task.group.draw, []).append((task, end.total))
        elif end.total is not None:
            self.encodings.learn(task.message_type, encoding, end.total)
        elif end.failure is not None and end.failure.statistics is not None:
            learn = self.encodings.learn_coarse if end.failure.coarse else self.encodings.learn_overflow
            learn(task.message_type, encoding, end.failure.statistics)

    def take_groups(self) -> None:
        """All groups of a draw have ended: what their sums told together is what the next encodings are made from."""
        for sums in self._groups.values():
            (task, total), *_ = sums
            assert task.encoding is not None  # noqa: S101 - of a secure exchange with a sum
            together = replace(total, statistics=joined([one.statistics for _, one in sums]))
            self.encodings.learn(task.message_type, task.encoding, together)
        self._groups = {}
