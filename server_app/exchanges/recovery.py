"""Recovery of an exchange after a restart, from the messages and closures that the database has.

The exchange goes through its stages again. For each closed stage it applies the messages of the clients that the
closure lists, and drops those that the closure gave up. In the open stage every stored message counts.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedcore.errors import ConfigurationError, DamagedAtRest, OtherForms, PeerError, RoundFailed, UsageError
from fedcore.wire.forms import our_forms
from fedcore.wire.uploads import ManifestIn, WithdrawIn
from server_app.exchanges.at_rest import damaged_message
from server_app.exchanges.context import ExchangeContext
from server_app.exchanges.outcome import StageClosure
from server_app.exchanges.receipts import WITHDRAWAL
from server_app.exchanges.receiver import MessageReceiver
from server_app.exchanges.stages import StageEvent
from server_app.exchanges.transfers import UpdateLimits
from server_app.storage.database import Change
from server_app.storage.store import ExchangeJournal
from server_app.storage.tables import ExchangeRow, ReceiptRow

log = logging.getLogger("fedcore.server")

FORMS: Final = "forms"
"""In a row's `extra`: in which forms of messages the exchange goes on."""


class RecoverableExchange(MessageReceiver):
    """An exchange that a later process, or server, can resume where an earlier one ended."""

    def __init__(self, context: ExchangeContext, limits: UpdateLimits) -> None:
        super().__init__(context, limits)
        self._departed_before: frozenset[int] = frozenset()
        """Clients that the closures so far list as gone."""

    # --- what the kinds do ----------------------------------------------------------------------

    @abstractmethod
    def begin(self, stage: str) -> None:
        """Prepare a stage."""

    def finish_stage(self, stage: str) -> Sequence[Change]:
        """End a stage for which no client is missing; returns the changes to write in the transaction that closes it.

        Raises RoundFailed. No client has seen a result of the stage before that transaction.
        """
        return ()

    async def restore_updates(
        self, folded: Mapping[str, Any] | None, waiting: frozenset[int], manifests: Mapping[int, ManifestIn]
    ) -> None:
        """Restore the updates after a restart.

        Args:
            folded: description of the last partial sum.
            waiting: clients whose updates were received in the stage that is still open.
            manifests: the manifest that each client signed.

        Raises:
            RoundFailed: the stored messages contradict each other.
            DamagedAtRest: a file is not what was written.
        """

    @abstractmethod
    def replay(self, client: int, step: str, body: bytes) -> None:
        """Apply a message that was accepted before a restart."""

    # --- after a restart ------------------------------------------------------------------------

    async def restore(self, history: ExchangeJournal) -> None:
        """Restore a suspended exchange from the database, so that `run` resumes it.

        In the open stage every stored message counts, its time starts over, and every client counts as heard from just
        now. If the stored messages contradict each other, `run` raises RoundFailed. Raises UsageError for an exchange
        that is not open.
        """
        row = await self.services.store.exchange(self.task.run, self.task.exchange)
        if row is None or row.result is not None:
            raise UsageError(f"exchange {self.task.exchange} is not open, so it cannot be resumed")
        self._opened, self._stored_stage = self.services.clock(), row.stage
        self.receipts.restore(history.receipts)
        self._is_silent = True
        damage = damaged_message(history.receipts, self.services.names)
        try:
            await self._replay(row, history)
        except OtherForms as error:  # the stored messages are not read
            self.fail(error)
            damage = None
        except DamagedAtRest as error:
            damage = error
        except (RoundFailed, PeerError, UsageError, ConfigurationError, ValueError) as error:
            self.fail(RoundFailed(f"the stored messages of the exchange contradict each other: {error}"))
        finally:
            self._is_silent = False
        if damage is not None:  # it explains any other contradiction
            log.error("exchange %d: %s", self.task.exchange, damage)
            self.services.metrics.storage_failed(damage)
            self.fail(damage)
        self.services.presence.expect(self.task.cohort)

    async def _replay(self, row: ExchangeRow, history: ExchangeJournal) -> None:
        """Go through the stages again, up to the one that `row` is in."""
        self.begin(self.stages.current)
        if (row.extra or {}).get(FORMS) != our_forms():
            raise OtherForms
        for closing in history.closings:
            self._replay_closure(StageClosure.from_json(closing.gone), history.receipts)
        if self.stages.current != row.stage:
            raise RoundFailed(f"the exchange is in stage {row.stage}, but its closures end in another")
        sent, manifests = self._messages_of_stage(history.receipts), _manifests(history.receipts)
        waiting = frozenset(receipt.client for receipt in sent if receipt.step == "manifest")
        await self.restore_updates(row.folded, waiting, manifests)
        for receipt in sent:
            self._replay_receipt(receipt)
        self._replay_withdrawals(history.receipts)

    def _replay_closure(self, closing: StageClosure, receipts: Sequence[ReceiptRow]) -> None:
        stage, answered = self.stages.current, frozenset(closing.answered)
        for receipt in self._messages_of_stage(receipts):
            if receipt.client in answered:
                self._replay_receipt(receipt)
        if self.clients.done != answered:
            raise RoundFailed(f"the database lacks answers of stage {stage}")
        for client, departure in closing.gone.items():
            self.clients.drop(client, departure.reason, departure.withdrawal)
        self._departed_before |= closing.gone.keys()
        self.blamed.update(closing.blamed)
        self.usage = closing.usage
        self.stages.move(StageEvent.CLOSE)
        self.finish_stage(stage)
        self._begin_next()

    def _messages_of_stage(self, receipts: Sequence[ReceiptRow]) -> list[ReceiptRow]:
        """Messages of the present stage from clients that had not been dropped before it."""
        stage, dropped = self.stages.current, self.clients.reasons
        return [one for one in receipts if self.steps.get(one.step) == stage and one.client not in dropped]

    def _replay_receipt(self, receipt: ReceiptRow) -> None:
        self.replay(receipt.client, receipt.step, receipt.body)
        if receipt.step == "manifest":
            self.clients.admit(receipt.client)
            self.clients.take(receipt.client)
        else:
            self.clients.answer(receipt.client)

    def _replay_withdrawals(self, receipts: Sequence[ReceiptRow]) -> None:
        for receipt in receipts:
            if receipt.step == WITHDRAWAL and receipt.client not in self.clients.reasons:
                withdrawal = WithdrawIn.model_validate_json(receipt.body)
                if withdrawal.complaint is not None:
                    self.judge_complaint(receipt.client, withdrawal.complaint)
                self.drop_withdrawn(receipt.client, withdrawal)

    def _begin_next(self) -> None:
        self.clients.begin_stage()
        self.begin(self.stages.move(StageEvent.NEXT_STAGE))


def _manifests(receipts: Sequence[ReceiptRow]) -> dict[int, ManifestIn]:
    return {one.client: ManifestIn.model_validate_json(one.body) for one in receipts if one.step == "manifest"}
