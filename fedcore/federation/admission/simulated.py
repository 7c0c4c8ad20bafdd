"""The owners of a simulated federation, who apply the same checks as real ones.

All of them have one policy, one roster and one app, so what depends on those alone is checked once for a whole cohort.
What each of them did before is its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ConfigDict, TypeAdapter

from fedcore.codec import ScaleMemory
from fedcore.codec.privacy import Accountant
from fedcore.errors import ProtocolViolation, RoundFailed
from fedcore.federation import Policy, Roster
from fedcore.federation.admission.admit import Admitted, AdmittedSum, Participant, admit
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.federation.admission.draws import answer_draw
from fedcore.federation.admission.first_model import AppModel, check_first_model, untraced_models
from fedcore.federation.admission.owner import AgreedSum, ModelEntry, ids_from_text, ids_to_text
from fedcore.federation.admission.refusals import describe, refused_by_all, refused_by_some
from fedcore.federation.admission.releases import counts_near_models
from fedcore.federation.admission.tasks import check_work
from fedcore.federation.near_models import ModelHistory, SketchBook
from fedcore.federation.policy import APP_MODEL
from fedcore.federation.transcript import Chain, ChainLink, NoisedSum, record_hash
from fedcore.run.groups import GroupAssignmentRecord, is_draw
from fedcore.secagg import Outcome, Verify, verifies
from fedcore.state import ModelState, Sketcher
from fedcore.wire.tasks import DrawTicket, Task, Version


@dataclass(slots=True)
class MemoryHistory:
    """A `ClientHistory` of `owner` that lasts as long as its simulation: one run, which is taken to be under a day.

    scale_memories
        What is remembered of the scales, by the layout of a model.
    pending
        The version from which the client made an update that is in no sum yet.
    draws_answered
        The draws that the client answered.
    """

    entered: int = 0
    sums: list[AgreedSum] = field(default_factory=list)
    scale_memories: dict[str, ScaleMemory] = field(default_factory=dict)
    noised: list[NoisedSum] = field(default_factory=list)
    pending: Version | None = None
    draws_answered: list[GroupAssignmentRecord] = field(default_factory=list)

    def entered_in(self, run: str) -> int:
        """How many exchanges were entered; there is one run."""
        del run
        return self.entered

    def entered_in_a_day(self) -> int:
        """The same."""
        return self.entered

    def enter(self, run: str, exchange: int) -> None:
        """Count an exchange."""
        del run, exchange
        self.entered += 1

    def released(self, purpose: str, model: str) -> list[AgreedSum]:
        """The sums of one purpose and model that this client agreed to."""
        return [released for released in self.sums if (released.purpose, released.model) == (purpose, model)]

    def release(self, released: AgreedSum) -> None:
        """Note that this client agrees to a sum."""
        self.sums.append(released)

    @property
    def attempts(self) -> tuple[NoisedSum, ...]:
        """The noised sums that this client's update went to, without those that are returned."""
        return tuple(self.noised)

    def spent(self, *, without: Collection[NoisedSum] = (), rows: bool = False) -> Accountant:
        """What all these sums may reveal about this client; with `rows` about a row, noise for rows alone included."""
        accountant = Accountant()
        counting = (one.release for one in self.noised if one not in without and (rows or not one.rows))
        for release, times in Counter(counting).items():
            accountant.add(release, times)
        return accountant

    def spend(self, attempt: NoisedSum) -> None:
        """Note that a noised update leaves this client."""
        self.noised.append(attempt)

    def refund(self, attempt: NoisedSum) -> None:
        """Note that it is proven that the sum of this attempt was never unmasked."""
        self.noised.remove(attempt)

    def drawn(self, run: str) -> GroupAssignmentRecord | None:
        """The last draw that this client answered."""
        del run
        return self.draws_answered[-1] if self.draws_answered else None

    def draws(self, purpose: str, model: str) -> int:
        """How many draws for one purpose and model this client answered."""
        return sum((drawn.purpose, drawn.model) == (purpose, model) for drawn in self.draws_answered)

    def draw(self, drawn: GroupAssignmentRecord) -> None:
        """Note that this client answers a draw."""
        self.draws_answered.append(drawn)

    def scales(self, run: str, layout: str) -> ScaleMemory | None:
        """What is remembered of the scales of a model's layout."""
        del run
        return self.scale_memories.get(layout)

    def remember_scales(self, run: str, layout: str, memory: ScaleMemory) -> None:
        """Note the scales of an exchange."""
        del run
        self.scale_memories[layout] = memory


_HISTORIES: Final = TypeAdapter(dict[int, MemoryHistory])
_MODELS: Final = TypeAdapter(list[tuple[ModelEntry, str]])
_SKETCHER: Final = Sketcher(b"fedcore simulation")
"""Of all simulations: nobody here makes models that a sketch would not tell apart."""
_LINKS: Final = TypeAdapter(list[ChainLink], config=ConfigDict(ser_json_bytes="hex", val_json_bytes="hex"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMember:
    """One member, as `fedcore.federation.admission.owner.Owner`."""

    client_id: int
    roster: Roster
    policy: Policy

    @property
    def federation(self) -> str:
        """The federation's name."""
        return self.roster.federation


@dataclass(slots=True, kw_only=True)
class SimulatedOwners:
    """The members of a simulated federation, what each of them remembers, and the transcript that all of them have.

    Every method raises ProtocolViolation for what an owner does not allow.
    """

    roster: Roster
    policy: Policy
    app_sha256: str
    agreed: AppAgreement
    """What they agreed to by installing the app with this hash."""
    chain: Chain = field(default_factory=Chain)
    from_app: bool = True
    """Whether the run begins with the model that the app makes in this process, so that there is nothing to derive."""
    _histories: dict[int, MemoryHistory] = field(init=False)
    _book: SketchBook = field(default_factory=SketchBook, init=False)
    _models: dict[int, ModelHistory] = field(default_factory=dict, init=False)
    _model_entries: list[tuple[ModelEntry, str]] = field(default_factory=list, init=False)
    """What entered the histories of models since they were saved last, and of which clients."""
    _admitted: AdmittedExchange | None = field(default=None, init=False)
    _verify: Verify = field(init=False)
    _saved_links: int = field(default=0, init=False)
    _saved_entries: dict[int, int] = field(default_factory=dict, init=False)
    """For each client, how many exchanges it had entered when its history was saved last."""

    def __post_init__(self) -> None:
        self._histories = {client: MemoryHistory() for client in self.roster.keys}
        self._verify = lru_cache(maxsize=2 * len(self.roster.members))(verifies)  # every group is shown all answers

    def history(self, client: int) -> MemoryHistory:
        """What a client remembers."""
        return self._histories[client]

    def save(self) -> dict[str, Any]:
        """What has changed since the last time, as JSON: the newest records, and the histories of who took part."""
        before = self._saved_entries
        changed = {client: one for client, one in self._histories.items() if one.entered != before.get(client, 0)}
        saved = {
            "links": _LINKS.dump_python(self.chain.links[self._saved_links :], mode="json"),
            "histories": _HISTORIES.dump_python(changed, mode="json"),
            "models": _MODELS.dump_python(self._model_entries, mode="json"),
        }
        self._note_saved()
        return saved

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take in what was saved once; to be called in the order in which it was saved."""
        for link in _LINKS.validate_json(json.dumps(saved["links"])):
            self.chain.add(link)
        self._histories.update(_HISTORIES.validate_json(json.dumps(saved["histories"])))
        for entry, clients in _MODELS.validate_json(json.dumps(saved.get("models", []))):
            self._add_model(entry, ids_from_text(clients))
        self._note_saved()

    def _note_saved(self) -> None:
        self._model_entries.clear()
        self._saved_links = len(self.chain.links)
        self._saved_entries = {client: history.entered for client, history in self._histories.items()}

    def take_work(self, task: Task, version: Version, clients: Collection[int]) -> None:
        """What every agent checks before it trains from a version, for a sum that is made later."""
        for client in clients:
            check_work(task, self._member(client), self.app_sha256, self.agreed)
            self._histories[client].pending = version
        self._check_first_model(task)

    def drop_work(self, clients: Collection[int]) -> None:
        """Updates of these clients are in a signed sum, or too old: forget them."""
        for client in clients:
            self._histories[client].pending = None

    def admit(self, task: Task, model: ModelState | None) -> AdmittedExchange:
        """What every agent of the cohort checks before it answers anything."""
        participants = [self._participant(client) for client in task.cohort]
        admitted = admit(task, participants, verify=self._verify)
        exchange = self._admitted = AdmittedExchange(admitted=admitted, chain=self.chain)
        self._check_first_model(task)
        if task.aggregation == "secure" and not is_draw(task):
            exchange.sum = admitted.admit_sum(self.chain)
            exchange.sum.check_model(model)
            self._know_model(task, model)
        return exchange

    def _know_model(self, task: Task, model: ModelState | None) -> None:
        """Every client of the cohort has the model of its task."""
        if model is None or not counts_near_models(task, self.policy):
            return
        is_known = self._book.knows(task.subject_model, _SKETCHER.name)
        entry = ModelEntry.of(task, None if is_known else _SKETCHER.sketch(model))
        self._add_model(entry, task.cohort)
        self._model_entries.append((entry, ids_to_text(task.cohort)))

    def _add_model(self, entry: ModelEntry, clients: Collection[int]) -> None:
        for client in clients:
            entry.apply(self._models.setdefault(client, ModelHistory(book=self._book)))

    def draw(self, task: Task, identities: Mapping[int, Ed25519PrivateKey]) -> tuple[DrawTicket, ...]:
        """The answers of the draw's cohort."""
        self.admit(task, None)
        tickets = []
        for client in task.cohort:
            answer = answer_draw(task, self._member(client), self._histories[client], identities[client])
            tickets.append(DrawTicket(client_id=client, nonce=answer.nonce, signature=answer.signature))
        return tuple(tickets)

    def _check_first_model(self, task: Task) -> None:
        if self.from_app and APP_MODEL in self.policy.first_models:
            return
        untraced = untraced_models(task, self.policy, self.chain)
        check_first_model(untraced, self.policy, AppModel(reason="the simulation was given an initial model"))

    def _member(self, client: int) -> SimulatedMember:
        return SimulatedMember(client_id=client, roster=self.roster, policy=self.policy)

    def _participant(self, client: int) -> Participant:
        history = self._histories[client]
        return Participant(
            owner=self._member(client),
            history=history,
            app_sha256=self.app_sha256,
            agreed=self.agreed,
            models=self._models.setdefault(client, ModelHistory(book=self._book)),
            start=history.pending,
        )

    @property
    def all_refused(self) -> bool:
        """Whether every client of the last exchange left it."""
        last = self._admitted
        return last is not None and len(last.refusals) == len(last.task.cohort)

    def explain(self, error: RoundFailed) -> str:
        """Why the last exchange failed, with what its owners refused."""
        if (last := self._admitted) is None:
            return str(error)
        if self.all_refused:
            return refused_by_all(last.refusals.values(), queries=last.task.queries)
        refusals = {
            member.name: last.refusals[member.id] for member in self.roster.members if member.id in last.refusals
        }
        return "; ".join(filter(None, (str(error), refused_by_some(refusals, queries=last.task.queries))))


@dataclass(slots=True, kw_only=True)
class AdmittedExchange:
    """An exchange that a cohort takes part in, until it ends."""

    admitted: Admitted
    chain: Chain
    sum: AdmittedSum | None = None
    """None of a plain exchange and of a draw."""
    refusals: dict[int, ProtocolViolation] = field(default_factory=dict)
    """Who left the exchange, by client id, and why."""

    @property
    def task(self) -> Task:
        """The task that was admitted."""
        return self.admitted.task

    def before_upload(self, client: int, peers: Collection[int]) -> None:
        """A client is about to send its masked update.

        Args:
            peers: whose keys it received.
        """
        if self.sum is None:
            return
        account = self.sum.account(client)
        if account.noised is None:
            return
        if account.policy.max_epsilon or account.policy.max_row_epsilon:
            account.confirm(peers)
        account.spend()

    def before_signature(self, client: int, survivors: Collection[int]) -> str:
        """A client is about to sign who survived; why it leaves instead, or ""."""
        assert self.sum is not None  # noqa: S101 - of a secure exchange
        try:
            self.sum.agree(client, survivors, present=survivors)
        except ProtocolViolation as refusal:
            self.refusals[client] = refusal
            return describe(refusal, queries=self.task.queries)
        return ""

    def record(self, outcome: Outcome, signers: Collection[int]) -> None:
        """The exchange has got its place in the transcript; complete if a quorum signed."""
        complete = len(signers) >= self.task.quorum
        name = record_hash(outcome, complete=complete)
        self.chain.add(
            ChainLink.of_sum(name, self.task, survivors=outcome.survivors, signers=signers, complete=complete)
        )
