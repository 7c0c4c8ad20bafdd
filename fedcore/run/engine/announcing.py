"""The tasks of a run's exchanges: each with its number, its encoding and its part of the privacy budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedcore.codec import AnyEncoding, release_of
from fedcore.run.engine.state import RunState
from fedcore.run.exchange import ExchangeRequest, make_draw, make_task
from fedcore.run.groups import GroupMembership
from fedcore.run.requirements import group_spec_for
from fedcore.run.settings import JobSettings
from fedcore.wire.base import Scalar
from fedcore.wire.tasks import Buffer, ModelRef, Task, is_training


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """Whom an attempt asks, out of which federation.

    clients
        The cohort.
    members, least
        How many members the federation has, and the least cohort of their policies.
    previous
        The head of the federation's transcript.
    roster
        The version of the roster.
    all_survive
        Whether all of the cohort have to survive.
    group
        Which group of a draw it is.
    buffer
        From which versions its updates began, in a buffered run.
    """

    clients: Sequence[int]
    members: int
    least: int
    previous: str
    roster: int = 1
    all_survive: bool = False
    group: GroupMembership | None = None
    buffer: Buffer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFactory:
    """Makes the tasks of one run.

    number
        Gives the number of the exchange that is about to be opened.
    """

    run: str
    settings: JobSettings
    app_sha256: str
    run_config: Mapping[str, Scalar]
    state: RunState
    number: Callable[[], int]

    def for_sum(self, request: ExchangeRequest, model: ModelRef | None, cohort: Cohort, *, attempt: int) -> Task:
        """The task of an attempt at a secure sum; raises BudgetSpent.

        model
            What clients train from, or evaluate.
        """
        trained = request.model if is_training(request.message_type) else None
        encoding = self.state.encodings.encoding(
            request.message_type,
            trained.layout if trained is not None else None,
            len(cohort.clients),
            cohort.members,
            all_survive=cohort.all_survive,
            model=model.sha256 if model else "",
        )
        self.state.budget.admit(release_of(encoding))
        return self.make(request, model, cohort, attempt=attempt, encoding=encoding)

    def for_draw(self, request: ExchangeRequest, model: ModelRef | None, cohort: Cohort, *, attempt: int) -> Task:
        """The task of a draw, by which the cohort is cut into groups."""
        cut, needed = group_spec_for(self.settings, len(cohort.clients), cohort.members, cohort.least)
        return make_draw(self.make(request, model, cohort, attempt=attempt), cut, needed=needed)

    def make(
        self,
        request: ExchangeRequest,
        model: ModelRef | None,
        cohort: Cohort,
        *,
        attempt: int,
        encoding: AnyEncoding | None = None,
    ) -> Task:
        """A task whose encoding is chosen already; none for an exchange that makes no sum itself."""
        group = cohort.group
        return make_task(
            request,
            settings=self.settings,
            run=self.run,
            exchange=self.number(),
            attempt=attempt,
            cohort=cohort.clients,
            app_sha256=self.app_sha256,
            run_config=self.run_config,
            model=model,
            encoding=encoding,
            least_cohort=cohort.least,
            roster=cohort.roster,
            members=cohort.members,
            all_survive=cohort.all_survive,
            previous=cohort.previous,
            buffer=cohort.buffer,
            cut=group.cut if group else None,
            group=group.group if group else None,
            tickets=group.tickets if group else None,
        )
