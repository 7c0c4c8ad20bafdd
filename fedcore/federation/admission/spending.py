"""What an exchange may cost of the owner's epsilon, and the return of what was never unmasked.

An update counts from the moment that it begins to leave this machine. A failed attempt is returned where the
transcript, and the clients that are there in the next one, prove that nobody can have taken the masks off its sum.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fedcore.codec import AnyEncoding, release_of
from fedcore.federation import Policy
from fedcore.federation.admission.owner import ExchangeHistory
from fedcore.federation.admission.tasks import check_privacy
from fedcore.federation.transcript import Chain, NoisedSum, never_unmasked
from fedcore.run.settings import JobSettings
from fedcore.wire.control import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacySpending:
    """The account of one exchange. chain: the transcript that it goes on from, as this client has checked it."""

    task: Task
    encoding: AnyEncoding
    settings: JobSettings
    policy: Policy
    ledger: ExchangeHistory
    chain: Chain

    def admit(self) -> None:
        """Before anything is said in the exchange: ProtocolViolation where it reveals more than the owner allows.

        Earlier attempts of the same run do not count yet. Who takes part in this one may prove that they stayed masked,
        and the retry of the last exchange that can be afforded has to be possible.
        """
        self._return_masked(())
        self._check([attempt for attempt in self.ledger.attempts if self._is_earlier(attempt)])

    def confirm(self, here: Collection[int]) -> None:
        """Before the update leaves, with every attempt that is not proven to have stayed masked.

        here: who takes part, as their keys that were signed for this exchange show.
        """
        self._return_masked(here)
        self._check(())

    def spend(self) -> None:
        """The update is about to leave."""
        if (release := release_of(self.encoding)) is not None:
            self.ledger.spend(NoisedSum.of(self.task, release))

    def _check(self, without: Collection[NoisedSum]) -> None:
        check_privacy(self.task, self.encoding, self.settings, self.policy, self.ledger.spent(without=without))

    def _is_earlier(self, attempt: NoisedSum) -> bool:
        return attempt.run == self.task.run and attempt.exchange < self.task.exchange

    def _return_masked(self, here: Collection[int]) -> None:
        for attempt in self.ledger.attempts:
            if never_unmasked(attempt, self.chain, here=here if self._is_earlier(attempt) else ()):
                self.ledger.give_back(attempt)
