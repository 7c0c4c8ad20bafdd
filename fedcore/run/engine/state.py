"""What the exchanges of a run have taught and cost so far: folded over their ends, live and after a restart alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedcore.codec import joined, release_of
from fedcore.codec.privacy import PrivacyBudget
from fedcore.run.buffer import starts_of
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.engine.outcome import AggregateResult, ExchangeOutcome
from fedcore.run.model_selection import ModelSelection
from fedcore.run.settings import JobSettings
from fedcore.secagg import Fault
from fedcore.wire.tasks import Task, is_query, is_training


@dataclass(slots=True)
class RunState:
    """The encodings to come, the privacy budget, who cheated, and how many exchanges and rounds there were.

    settings
        Of the run.
    least_cohort
        Fewest clients that a sum may be made of, by their policies.
    count
        The number of the last exchange, draws and failed attempts included.
    configs
        The configurations that went with the last training.
    spent
        Of a buffered run: for each client the version whose update was in a sum last, as in `WorkBook`.
    selection
        The best evaluation so far.
    rounded
        The integer tensors whose mean was rounded in the first sum that rounded any.
    """

    settings: JobSettings
    least_cohort: int
    encodings: EncodingPlan = field(init=False)
    budget: PrivacyBudget = field(init=False)
    selection: ModelSelection = field(init=False)
    blamed: dict[int, Fault] = field(default_factory=dict, init=False)
    count: int = field(default=0, init=False)
    rounds: int = field(default=0, init=False)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    spent: dict[int, int] = field(default_factory=dict, init=False)
    rounded: tuple[str, ...] = field(default=(), init=False)
    _groups: dict[str, list[tuple[Task, AggregateResult]]] = field(default_factory=dict, init=False)
    """The sums of the draw whose groups came last."""

    def __post_init__(self) -> None:
        self.encodings = EncodingPlan(self.settings, self.least_cohort)
        self.budget = PrivacyBudget(self.encodings.privacy)
        self.selection = ModelSelection.parse(self.settings.best_model)

    def withholds(self, message_type: str) -> bool:
        """Whether clients are not asked at all: for metrics alone, if differential privacy has no bound for them."""
        return self.budget.withholds(is_training(message_type) or is_query(message_type))

    def admits(self, message_type: str, upcoming: Mapping[str, int], check: Callable[[int, str], None]) -> bool:
        """Whether clients are asked for an exchange; raises what `check` raises.

        upcoming
            Of the strategy's coming exchanges: message type -> how many clients it will ask (`ExchangeRequest.ahead`).
        check
            Called with the size and the message type of each cohort to come: a run that is going to ask too few fails
            before the first client has worked for it.
        """
        if self.withholds(message_type):
            return False
        for coming, clients in upcoming.items():
            if not self.withholds(coming):
                check(clients, coming)
        return True

    def next_exchange(self) -> int:
        """The number of an exchange that is about to be opened."""
        self.count += 1
        return self.count

    def take(self, task: Task, end: ExchangeOutcome) -> bool:
        """One more exchange has ended; returns whether it evaluated the best model so far."""
        self.count = max(self.count, task.exchange)
        self.blamed.update(end.blamed)
        self.spent.update({client: start.number for client, start in starts_of(task, end.survivors).items()})
        if end.unmasked or end.total is not None:  # shares were asked for: the sum may be known, also after a failure
            self.budget.spend(release_of(task.encoding))
        if end.failure is None:
            repeated = task.group is not None and task.group.draw in self._groups
            self.rounds += task.trains and bool(end.survivors) and not repeated
            self.configs = task.configs if task.trains else self.configs
        if end.total is not None:
            self.rounded = self.rounded or end.total.rounded
        self._learn(task, end)
        return evaluates(task, end) and self.selection.judge(end.total.metrics if end.total else {})

    def take_open(self, task: Task) -> None:
        """An exchange never came to its end after shares were asked for: it has cost what its sum would have."""
        self.count = max(self.count, task.exchange)
        self.budget.spend(release_of(task.encoding))

    def take_groups(self) -> None:
        """All groups of a draw have ended: the next encodings follow from what their sums say together."""
        for sums in self._groups.values():
            (task, total), *_ = sums
            assert task.encoding is not None  # noqa: S101 - of a secure exchange with a sum
            together = replace(total, statistics=joined([one.statistics for _, one in sums]))
            self.encodings.learn(task.message_type, task.encoding, together)
        self._groups = {}

    def _learn(self, task: Task, end: ExchangeOutcome) -> None:
        encoding = task.encoding
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


def evaluates(task: Task, end: ExchangeOutcome) -> bool:
    """Whether an exchange says how good the model is that it was asked of."""
    return not task.trains and not task.queries and end.failure is None and end.total is not None
