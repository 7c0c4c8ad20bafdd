"""The visit of a task to admission: every check that needs no network, in one order, for the agent and the simulator.

The agent admits a task for itself, the simulator for all of a cohort, whose owners have one policy, one roster and one
app: what depends on those alone is checked once. What depends on the history of a client is checked for each.

What needs the transcript comes once the client has it, `Admitted.admit_sum`, and what needs the model once that is
there, while the keys are exchanged: `AdmittedSum.check_model`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fedcore.codec import AnyEncoding
from fedcore.errors import ProtocolViolation
from fedcore.federation.admission import checks
from fedcore.federation.admission.app_agreement import AppAgreement, check_planned
from fedcore.federation.admission.draws import check_draw
from fedcore.federation.admission.encodings import check_encoding, check_trained_layout, follow_scales
from fedcore.federation.admission.first_model import check_layout
from fedcore.federation.admission.owner import ClientHistory, Owner
from fedcore.federation.admission.privacy import PrivacySpending
from fedcore.federation.admission.releases import agree, check_versions, counts_near_models
from fedcore.federation.admission.tasks import (
    check_frequency,
    check_start,
    check_task,
    check_work,
    derive_parameters,
)
from fedcore.federation.near_models import ModelHistory
from fedcore.federation.transcript import Chain
from fedcore.run.settings import JobSettings
from fedcore.secagg import RoundParameters, Verify, verifies
from fedcore.state import ModelState
from fedcore.wire.tasks import Task, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """A client whose owner is asked."""

    owner: Owner
    history: ClientHistory
    app_sha256: str
    """The app that the owner installed."""
    agreed: AppAgreement
    """What that app's pyproject.toml says."""
    start: Version | None = None
    """Which version the update began from that this client has for a buffered sum; None if it has none."""
    models: ModelHistory = field(default_factory=ModelHistory)
    """The models that it had for earlier sums, and for this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A task that every participant takes part in, until a later check refuses it."""

    task: Task
    settings: JobSettings
    """Those that the exchange follows."""
    participants: Mapping[int, Participant]
    """By client id."""
    planned: str = ""
    """The question of the app's study plan that it belongs to; "" for none."""

    def admit_sum(self, chain: Chain) -> AdmittedSum:
        """The checks of a secure sum, before its first message; raises ProtocolViolation.

        The scales are noted in each history.

        Args:
            chain: The transcript that the task goes on from, as these clients have checked it.
        """
        check_versions(self.task, chain)
        admitted = AdmittedSum(admitted=self, encoding=check_encoding(self.task), chain=chain)
        checked: set[tuple[tuple[str, int], ...]] = set()
        for client, participant in self.participants.items():
            follow_scales(self.task, admitted.encoding, participant.history)
            spent = tuple((attempt.run, attempt.exchange) for attempt in participant.history.attempts)
            if spent not in checked:  # what a sum costs takes long to compute, and most have spent alike
                checked.add(spent)
                admitted.account(client).admit()
        return admitted


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedSum:
    """A secure sum that the participants of `admitted` take part in, until it ends."""

    admitted: Admitted
    encoding: AnyEncoding
    chain: Chain

    def check_model(self, model: ModelState | None) -> None:
        """The checks of the model, before it is used; raises ProtocolViolation.

        Args:
            model: The model that was received; None if the task sends none.
        """
        task = self.admitted.task
        if not self._first.owner.policy.allow_differencing:
            check_layout(task, model, self.chain)
        check_trained_layout(task, self.encoding, model)

    def parameters(self, model_hash: bytes | None) -> RoundParameters:
        """What ctx is made of; `model_hash` is the SHA-256 of the only file that these clients train from."""
        return derive_parameters(self.admitted.task, self._first.owner, model_hash)

    @property
    def _first(self) -> Participant:
        return next(iter(self.admitted.participants.values()))

    def account(self, client: int) -> PrivacySpending:
        """What the sum costs a client of its epsilon."""
        participant = self.admitted.participants[client]
        return PrivacySpending(
            task=self.admitted.task,
            encoding=self.encoding,
            settings=self.admitted.settings,
            policy=participant.owner.policy,
            history=participant.history,
            chain=self.chain,
        )

    def agree(self, client: int, survivors: Collection[int], *, present: Collection[int]) -> None:
        """A client agrees to the sum over `survivors`, durably; raises ProtocolViolation if its owner does not.

        Args:
            present: who takes part, as their signed keys show.
        """
        participant = self.admitted.participants[client]
        policy, history, task = participant.owner.policy, participant.history, self.admitted.task
        near: Collection[str] = ()
        if counts_near_models(task, policy):
            near = participant.models.near(task.message_type, task.subject_model, policy.near_models)
        agree(
            task, self.encoding, survivors, policy, history, self.chain,
            present=present, near=near, planned=self.admitted.planned,
        )  # fmt: skip


def admit(task: Task, participants: Sequence[Participant], *, verify: Verify = verifies) -> Admitted:
    """Enter an exchange for these clients of its cohort; raises ProtocolViolation if an owner does not allow it.

    The exchange's number is used up first, so that nothing after it can happen twice.
    """
    for participant in participants:
        check_frequency(task, participant.owner.policy, participant.history)
        planned = check_planned(task, participant.agreed.plan, participant.history)
        participant.history.enter(task.run, task.exchange)
    first = participants[0]
    settings = check_task(task, first.owner, first.app_sha256, first.agreed)
    for participant in participants:
        check_start(task, participant.owner.client_id, participant.start)
    # Of a group the first member checks the answers to the draw, which are the same for all.
    check_draw(task, settings, first.owner, first.history, verify=verify)
    by_id = {participant.owner.client_id: participant for participant in participants}
    return Admitted(task=task, settings=settings, participants=by_id, planned=planned)


def admit_work(task: Task, participant: Participant) -> Version:
    """Take on a training for a later sum; returns the version that it begins from, or raises ProtocolViolation."""
    check_frequency(task, participant.owner.policy, participant.history)
    check_work(task, participant.owner, participant.app_sha256, participant.agreed)
    if task.version is None or task.version.sha256 != task.model_sha256:
        raise ProtocolViolation(checks.START_MISMATCH, "the work names another model than its version")
    return task.version
