"""A dry round in memory: one client works for the whole cohort, and all refusals are collected.

Everything is that of a simulation: the app's own ServerApp over the Grid of secure mode, the tasks, the owners' checks,
the ClientApp, the codec. Only the protocol's messages are left out, and the cohort's updates are that of one client.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedcore.api.findings import Findings
from fedcore.codec import AnyEncoding, Encoding, change_bytes, decode, release_of
from fedcore.codec.privacy import Accountant, PrivacyBudget
from fedcore.errors import AppError, BudgetSpent, CohortBelowMinimum, RoundingTooCoarse, UpdateTooLarge
from fedcore.federation.admission.privacy import check_privacy
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.flower.grid.grid import ExchangeBackend
from fedcore.flower.serverside import ServerAppOutcome
from fedcore.run.engine.attempts import Attempt
from fedcore.run.exchange import COHORT, ExchangeReply, ExchangeRequest
from fedcore.run.room import RoomNeeds
from fedcore.run.settings import planned_rounds
from fedcore.simulation import Simulation
from fedcore.simulation.models import model_ref
from fedcore.simulation.sessions.sessions import encoded
from fedcore.state import ModelState
from fedcore.wire.base import MetricValue
from fedcore.wire.tasks import Task, is_query, is_training

WORKER = 1
"""The client that works."""


class EnoughNodes(BaseException):
    """Ends the ServerApp once a round is over, whatever it catches."""


@dataclass(slots=True, kw_only=True)
class DryRound(Simulation):
    """A simulation whose exchanges end after one client's work.

    findings: where refusals go. Owners agree to the run config and the settings as they are, which are checked apart.
    facts: of the model and what is sent.
    reported: message type -> the metrics of its reply.
    costs: task and encoding of each noised sum of the round.
    """

    findings: Findings
    facts: dict[str, Any] = field(default_factory=dict, init=False)
    reported: dict[str, dict[str, MetricValue]] = field(default_factory=dict, init=False)
    costs: list[tuple[Task, AnyEncoding]] = field(default_factory=list, init=False)
    _requests: Counter[str] = field(default_factory=Counter, init=False)
    _most_up: int = field(default=0, init=False)
    """Bytes of the largest upload."""
    _mean: str = field(default="", init=False)
    """SHA-256 of the mean that the strategy was given."""
    _changes: dict[str, int] = field(default_factory=dict, init=False)
    """Facts: what clients get in its place on slow lines, in the second round and in later ones."""

    @contextlib.contextmanager
    def open(self) -> Iterator[ExchangeBackend]:
        with super(DryRound, self).open() as backend:
            self._owners.agreed = replace(self._owners.agreed, run_config=self.run_config, settings=self.settings)
            yield backend

    def run(self) -> ServerAppOutcome:
        outcome = super(DryRound, self).run()
        self._note_next(outcome.state)
        return outcome

    def _note_next(self, model: ModelState | None) -> None:
        """Note what slow lines get in place of a model, if it is the mean."""
        if self._mean and self._changes and (reference := model_ref(model)) and reference.sha256 == self._mean:
            self.facts |= self._changes

    def refuse(self, error: AppError) -> None:
        """Note that code of the app wants more than the mean, and let it have that alone."""
        self.findings.error("the strategy", str(error))

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """One exchange; refusals are noted, and the next one comes anyway."""
        kind = request.message_type
        if self._state.withholds(kind):
            return []
        self._requests[kind] += 1
        self._note_next(request.model)
        if self._requests[kind] > 1 and not is_query(kind):
            raise EnoughNodes
        enlarged = self._enlarged(request)
        if enlarged.nodes != request.nodes:
            self.findings.warn("the strategy", self._all_evaluate)
        request = self._with_enough_nodes(enlarged)
        groups = self.settings.groups if is_training(kind) else 1
        request = replace(request, nodes=request.nodes[: -(-len(request.nodes) // groups)])  # the largest group
        encoding = self._encoding(request)
        cohort = self._aggregator.cohort(request.nodes, Attempt(number=1))
        task = self._aggregator.tasks.make(request, model_ref(request.model), cohort, attempt=1, encoding=encoding)
        if encoding is not None:
            self._admit(task, encoding, request.model)
        result = None
        with self.findings.expecting(f"the ClientApp's {kind}"):
            ((_, result),) = self._executor.run(task, request.model, [WORKER])
        if result is None:
            if is_query(kind):
                raise EnoughNodes
            return [_nothing(request)] * groups
        self.reported[kind] = dict(result.metrics)
        return [self._reply(request, task, encoding, result)] * groups

    def _with_enough_nodes(self, request: ExchangeRequest) -> ExchangeRequest:
        """The request, of all clients where the strategy asks too few: that is said once, and not all that follows."""
        enough = True
        for kind, nodes in (*request.ahead.items(), (request.message_type, len(request.nodes))):
            if self._state.withholds(kind):
                continue
            try:
                self._check_request(nodes, kind)
                enough = True
            except CohortBelowMinimum as error:
                self.findings.error("the strategy", str(error))
                enough = False
        return request if enough else replace(request, nodes=tuple(self.nodes()))

    def _encoding(self, request: ExchangeRequest) -> AnyEncoding | None:
        """The encoding of the exchange; None if there is none that fits."""
        kind, n = request.message_type, len(request.nodes)
        layout = request.model.layout if request.model and is_training(kind) else None
        if layout is not None:
            sizes = [int(np.prod(spec.shape)) for spec in layout.specs]
            self.facts |= {"tensors": len(sizes), "parameters": sum(sizes), "model_bytes": layout.nbytes}
        with self.findings.expecting("the encoding"):
            encoding = self._state.encodings.encoding(kind, layout, n, self.clients, model=_model_hash(request))
            if layout is not None:
                self.facts["first_bytes_up"] = self.facts["bytes_up"] = encoding.words * 8
                self._most_up = max(self._most_up, encoding.words * 8)
            return encoding
        return None

    def _admit(self, task: Task, encoding: AnyEncoding, model: ModelState | None) -> None:
        """What the owners check of the task, and what its noise costs."""
        with self.findings.expecting("the clients' policies"):
            self._owners.admit(task, model)
        if release_of(encoding) is not None:
            self.costs.append((task, encoding))
            self._state.budget.spend(release_of(encoding))

    def _reply(
        self, request: ExchangeRequest, task: Task, encoding: AnyEncoding | None, result: LocalResult
    ) -> ExchangeReply:
        """The mean of as many updates as the cohort has, all of them the worker's."""
        n, base = len(request.nodes), request.model if is_training(request.message_type) else None
        if encoding is not None:
            with self.findings.expecting("the ClientApp's reply"):
                total = encoded(encoding, request.model, result.state(), result.examples, result.metrics) * np.uint64(n)
                try:
                    decoded = decode(encoding, total, survivors=n, base=base, sums=task.queries)
                except UpdateTooLarge as error:  # a round would repeat it with wider scales
                    self._state.encodings.learn_overflow(request.message_type, encoding, error.statistics)
                    return _nothing(request)
                except RoundingTooCoarse as error:  # or with wider fields
                    if not error.helps:
                        raise
                    self._state.encodings.learn_coarse(request.message_type, encoding, error.statistics)
                    return _nothing(request)
                self._state.encodings.learn(request.message_type, encoding, decoded)
                if base is not None:  # from now on with the packed fields of the settings
                    model = _model_hash(request)
                    later = self._state.encodings.encoding(
                        request.message_type, base.layout, n, self.clients, model=model
                    )
                    self.facts["bytes_up"] = later.words * 8
                    sums = {"first_change_bytes": encoding, "change_bytes": later}
                    sizes = {name: change_bytes(one) for name, one in sums.items() if isinstance(one, Encoding)}
                    self._changes = {name: size for name, size in sizes.items() if size}
                    reference = model_ref(decoded.state)
                    self._mean = reference.sha256 if reference is not None else ""
                return ExchangeReply.of_cohort(decoded)
        return _nothing(request)

    def reckon_room(self) -> None:
        """Add to the facts what memory and disk the parties need, if the model is large."""
        model, plain = int(self.facts.get("model_bytes", 0)), self.settings.aggregation == "plain"
        update = model if plain else self._most_up
        needs = RoomNeeds.of(self.settings, model=model, update=update, clients=self.clients)
        if needs.is_large:
            self.facts |= needs.facts

    def check_budget(self) -> None:
        """What the noise of all rounds that are planned costs, against the run's budget and the clients'."""
        rounds = planned_rounds(self.run_config)
        if not self.costs or rounds is None:
            return
        budget, spent = PrivacyBudget(self._state.encodings.privacy), Accountant()
        for _, encoding in self.costs:
            for _ in range(rounds - 1):
                budget.spend(release_of(encoding))
            if (release := release_of(encoding)) is not None and rounds > 1:
                spent.add(release, rounds - 1)
        task, encoding = self.costs[0]
        try:
            budget.admit(release_of(encoding))
        except BudgetSpent as error:
            self.findings.warn("privacy", f"the run ends before its {rounds} rounds are done: {error}")
        with self.findings.expecting("the clients' policies"):
            check_privacy(task, encoding, self.settings, self._owners.policy, spent)


def _model_hash(request: ExchangeRequest) -> str:
    reference = model_ref(request.model)
    return reference.sha256 if reference is not None else ""


def _nothing(request: ExchangeRequest) -> ExchangeReply:
    """A reply with which a strategy can go on."""
    state = request.model if is_training(request.message_type) else None
    return ExchangeReply(node=COHORT, state=state, examples=1, metrics={})
