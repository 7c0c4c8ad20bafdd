"""Exchanges of one sum: attempts at it until one is opened, with buffered asynchrony of whoever is done by then."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

from fedcore.errors import ProtocolViolation, RoundFailed, RunFailed
from fedcore.flower.apps.result_cache import AppResults
from fedcore.run.exchange import ExchangeRequest, make_work
from fedcore.run.requirements import min_clients_for
from fedcore.run.retries import Attempts, attempt_ended
from fedcore.simulation.buffered import Floor
from fedcore.simulation.models import model_ref
from fedcore.simulation.owners import RUN
from fedcore.simulation.secure import Attempt, SecureSums
from fedcore.simulation.sums import Summed
from fedcore.wire.control import is_training


@dataclass(slots=True, kw_only=True)
class CohortSums:
    """The exchanges of a run in which a cohort is one sum.

    seed: draws who gets work where not all can. floor: the clients at work, of a run in which no round waits for them.
    """

    sums: SecureSums
    seed: int
    floor: Floor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        sums = self.sums
        if sums.virtual is not None and sums.settings.buffered:
            self.floor = Floor.of(
                sums.virtual,
                sums.clients,
                sums.least,
                executor=sums.executor,
                seed=self.seed,
                take=sums.owners.take_work,
                drop=self._lost_work,
            )

    def exchange(self, request: ExchangeRequest, kept: AppResults) -> Summed:
        """One exchange, tried again with new dropouts after a failure; raises RunFailed."""
        sums, trained = self.sums, set[int]()
        attempts = Attempts(settings=sums.settings, has_room=sums.has_room)
        floor = self.floor if is_training(request.message_type) else None
        if floor is not None:
            self._publish(floor, request)
        for number in itertools.count(1):
            cohort, whole = attempts.same or request.nodes, attempts.whole
            if floor is not None and attempts.same is None:
                cohort, whole = floor.cohort(request.nodes), whole or bool(floor.named)
            asked = replace(request, nodes=cohort)
            sums.count += 1
            attempt = Attempt(number=number, whole=whole, kept=kept, trained=trained, floor=floor)
            try:
                asked = self._present(asked, attempt, again=attempts.same is not None)
                return self._attempt(asked, attempt)
            except ProtocolViolation as refusal:
                raise sums.refused(request, refusal) from refusal
            except RoundFailed as error:
                again = attempts.go_on(error, asked.nodes, attempt.survivors, free=False)
                if floor is not None and attempts.same is None:
                    self._keep_or_spend(floor)
                if not self._try_again(request, attempt, error, again and not sums.owners.all_refused):
                    raise RunFailed(sums.final_reason(request, attempt, error)) from error
        raise AssertionError("there is always another number")

    def _attempt(self, request: ExchangeRequest, attempt: Attempt) -> Summed:
        started = self.sums.clock()
        found = self.sums.sum(request, attempt)
        self.sums.learn(request, [found])
        self.sums.done(request, [replace(found, seconds=self.sums.clock() - started)], self.sums.count)
        return found

    def _present(self, request: ExchangeRequest, attempt: Attempt, *, again: bool) -> ExchangeRequest:
        """The request to those who are there on the virtual clock; raises RoundFailed where these are too few.

        again: a sum of the same clients is repeated.
        """
        if self.sums.virtual is None or again or attempt.floor is not None:
            return request
        wanted = len(request.nodes)
        least = min_clients_for(wanted, self.sums.settings, self.sums.clients, self.sums.least)
        extra = self.sums.virtual.beyond(wanted) if is_training(request.message_type) else 0
        attempt.enough = wanted if extra else 0
        members = range(1, self.sums.clients + 1)
        return replace(request, nodes=self.sums.virtual.cohort(request.nodes, members, least=least, extra=extra))

    def _publish(self, floor: Floor, request: ExchangeRequest) -> None:
        """The strategy's model is the newest version from here on."""
        if request.model is None:
            raise RunFailed('a training names no model, and asynchrony = "buffered" sums changes of one')
        work = make_work(
            request,
            settings=self.sums.settings,
            run=RUN,
            exchange=self.sums.count + 1,
            app_sha256=self.sums.owners.app_sha256,
            run_config=self.sums.run_config,
            model=model_ref(request.model),
        )
        floor.publish(request.model, work)
        floor.up = floor.up or 8 * sum(spec.size for spec in request.model.layout.specs)  # a first exchange's fields

    def _keep_or_spend(self, floor: Floor) -> None:
        """After an attempt without a sum: updates that were named can only be in the very same sum, asked for once."""
        last = self.sums.owners.chain.links[-1] if self.sums.owners.chain.links else None
        if floor.named:
            for client in floor.give_up_named():
                self._lost_work(client, "its update was in a sum that stayed closed, and can be in no other")
        elif last is not None and last.exchange == self.sums.count:
            floor.named = tuple(sorted(client for client, _, _ in last.buffered))

    def _lost_work(self, client: int, why: str) -> None:
        self.sums.owners.drop_work([client])
        self.sums.dropped(None, client, "train", why)

    def _try_again(self, request: ExchangeRequest, attempt: Attempt, error: RoundFailed, again: bool) -> bool:
        """Tell of an attempt without a sum; returns `again`."""
        reason, survivors = self.sums.owners.explain(error), len(attempt.survivors)
        self.sums.emit(attempt_ended(error, reason, self.sums.count, request.server_round, survivors, again=again))
        return again
