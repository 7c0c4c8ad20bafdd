"""The assignment of groups by a draw: one stage, in which each client sends a ticket (`fedcore.run.groups`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fedcore.errors import CohortTooSmall
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.groups import check_ticket
from fedcore.wire.problems import ProblemKind
from fedcore.wire.tasks import DrawTicket, DrawTicketIn
from fedcore.wire.uploads import ManifestIn
from server_app.exchanges.context import ExchangeContext
from server_app.exchanges.exchange import Exchange
from server_app.exchanges.transfers import UpdateLimits
from server_app.rejection import Rejection

DRAW: Final = "draw"


class DrawExchange(Exchange):
    """Takes the answers to a draw; how the cohort is cut follows from them.

    roster: client id -> raw Ed25519 key.
    """

    stage_names = (DRAW,)
    steps: Mapping[str, str] = {"place": DRAW}
    updates_folder = "places"

    def __init__(self, context: ExchangeContext, *, federation: str, roster: Mapping[int, bytes]) -> None:
        super().__init__(context, UpdateLimits(longest=0, exact=True))
        self._federation = federation
        self._roster = roster
        self._digest = context.task.digest()
        self._tickets: dict[int, DrawTicket] = {}

    def seconds_for(self, stage: str) -> float:
        """A draw takes a client no time."""
        return self.context.settings.step_seconds

    def begin(self, stage: str) -> None:
        """There is nothing to prepare."""

    async def take_ticket(self, client: int, body: DrawTicketIn, digest: bytes) -> None:
        """A client's answer, for good; raises ProtocolViolation if it is not signed for this draw."""
        await self.take(client, "place", digest, body, lambda: self._note(client, body))

    def replay(self, client: int, step: str, body: bytes) -> None:
        """The answer that was kept."""
        self._note(client, DrawTicketIn.model_validate_json(body))

    def _note(self, client: int, body: DrawTicketIn) -> None:
        ticket = DrawTicket(client_id=client, nonce=body.nonce, signature=body.signature)
        check_ticket(self._federation, self._digest, ticket, self._roster)
        self._tickets[client] = ticket

    async def finish(self) -> ExchangeOutcome:
        """All answers but those of clients that have left since; raises CohortTooSmall."""
        answered = sorted(self.clients.done - self.clients.reasons.keys())
        if len(answered) < self.task.quorum:
            raise CohortTooSmall(DRAW, len(answered), self.task.quorum)
        return self.make_outcome(places=tuple(self._tickets[client] for client in answered))

    def check_manifest(self, manifest: ManifestIn) -> None:
        """A draw takes no updates; raises Rejection."""
        raise Rejection(ProblemKind.NOT_FOUND, "a draw takes no updates")

    async def add_update(self, client: int, manifest: ManifestIn) -> None:
        """Never: no manifest is admitted."""
        raise Rejection(ProblemKind.NOT_FOUND, "a draw takes no updates")
