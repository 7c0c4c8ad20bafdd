"""What an exchange may cost of the owner's epsilon, and the return of what was never unmasked.

An update counts from the moment that it begins to leave this machine. The cost of a failed attempt is returned once the
transcript, and the clients that take part in the next one, prove that nobody can have taken the masks off its sum.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from fedcore.codec import AnyEncoding, private_encoding, release_of
from fedcore.codec.privacy import Accountant, Release
from fedcore.codec.privacy.query_noise import QueryNoise
from fedcore.errors import ConfigurationError, EncodingError, ProtocolViolation
from fedcore.federation import Policy
from fedcore.federation.admission import checks
from fedcore.federation.admission.owner import ClientHistory
from fedcore.federation.transcript import Chain, NoisedSum, never_unmasked
from fedcore.run.privacy_budget import privacy_plan
from fedcore.run.quorum import noise_clients
from fedcore.run.settings import JobSettings
from fedcore.secagg import Check
from fedcore.wire.tasks import Task

_ENDLESS: Final = 1e18
"""Stands for an epsilon without bound in a refusal."""
_ROUNDING: Final = 1e-3
"""By how much less noise may be announced than this machine computes; the multiplier has four digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacySpending:
    """The account of one exchange.

    chain: the transcript that it goes on from, as this client has checked it.
    """

    task: Task
    encoding: AnyEncoding
    settings: JobSettings
    policy: Policy
    history: ClientHistory
    chain: Chain

    def admit(self) -> None:
        """Before the first message of the exchange: ProtocolViolation if it reveals more than the owner allows.

        Earlier attempts of the same run do not count yet. Who takes part in this one may prove that they stayed masked,
        and the retry of the last exchange that can be afforded has to be possible.
        """
        self._return_masked(())
        self._check([attempt for attempt in self.history.attempts if self._is_earlier(attempt)])

    def confirm(self, present: Collection[int]) -> None:
        """Before the update leaves, with every attempt that is not proven to have stayed masked.

        Args:
            present: who takes part, as their keys that were signed for this exchange show.
        """
        self._return_masked(present)
        self._check(())

    def spend(self) -> None:
        """The update is about to leave."""
        if (noised := self.noised) is not None:
            self.history.spend(noised)

    @property
    def noised(self) -> NoisedSum | None:
        """The sum with its noise, for the client or for rows alone; None if it has none."""
        if (release := release_of(self.encoding)) is not None:
            return NoisedSum.of(self.task, release)
        noise = row_noise(self.task)
        return None if noise is None else NoisedSum.of(self.task, noise.release, rows=True)

    def _check(self, without: Collection[NoisedSum]) -> None:
        if row_noise(self.task) is None:
            spent = self.history.spent(without=without)
            check_privacy(self.task, self.encoding, self.settings, self.policy, spent)
        if self.policy.max_row_epsilon or self.noised is not None:
            check_rows(self.task, self.encoding, self.policy, self.history.spent(without=without, rows=True))

    def _is_earlier(self, attempt: NoisedSum) -> bool:
        return attempt.run == self.task.run and attempt.exchange < self.task.exchange

    def _return_masked(self, present: Collection[int]) -> None:
        for attempt in self.history.attempts:
            if never_unmasked(attempt, self.chain, present=present if self._is_earlier(attempt) else ()):
                self.history.refund(attempt)


def row_noise(task: Task) -> QueryNoise | None:
    """The noise for rows that the message of a query states; raises ProtocolViolation for what is none."""
    try:
        return QueryNoise.stated(task.configs) if task.queries else None
    except EncodingError as error:
        raise ProtocolViolation(checks.ENCODING_OFF_SETTINGS, str(error)) from None


def check_rows(task: Task, encoding: AnyEncoding, policy: Policy, spent: Accountant) -> None:
    """Refuse an exchange that reveals more about a row than its owner allows; raises ProtocolViolation.

    Noise that protects the client protects each of its rows. Noise for rows alone needs `max_row_epsilon` if the owner
    insists on noise for the client.
    """
    noise = row_noise(task)
    release = noise.release if noise is not None else release_of(encoding)
    if release is None:
        raise ProtocolViolation(
            checks.PRIVACY_REQUIRED,
            f"the sum has no noise, the policy allows epsilon {policy.max_row_epsilon:g} for a row at most",
        )
    if noise is not None:
        if policy.max_epsilon and not policy.max_row_epsilon:
            raise ProtocolViolation(
                checks.PRIVACY_REQUIRED,
                "the noise of the sum protects rows, the policy demands noise for the whole client (max-epsilon), and "
                "has no max-row-epsilon",
            )
        _check_row_shares(task, release)
    if policy.max_row_epsilon:
        _check_spending(release, spent, policy.max_row_epsilon, policy.delta)


def _check_row_shares(task: Task, release: Release) -> None:
    """The noise counts on no more clients than a sum is sure to have; one share is the client's own."""
    if task.protection is None:
        raise ProtocolViolation(Check.BAD_PARAMETERS, "noise for rows needs a secure task")
    sure = max(1, noise_clients(len(task.cohort), task.quorum, task.protection))
    if release.shares > sure:
        raise ProtocolViolation(
            checks.NOISE_SHARES,
            f"the noise is shared out among {release.shares} clients, a sum is sure to hold those of {sure} only",
            asked=release.shares,
            allowed=sure,
        )


def check_privacy(task: Task, encoding: AnyEncoding, settings: JobSettings, policy: Policy, spent: Accountant) -> None:
    """Refuse an exchange that reveals more about this client than its owner allows; raises ProtocolViolation.

    What it reveals follows from the announced noise alone, which ctx binds, and from what this client has `spent`.
    """
    release = release_of(encoding)
    if release is None:
        if policy.max_epsilon:
            raise ProtocolViolation(
                checks.PRIVACY_REQUIRED,
                f"the sum has no noise, the policy allows epsilon {policy.max_epsilon:g} at most",
            )
        return
    _check_noise(task, encoding, release, settings)
    if policy.max_epsilon:
        _check_spending(release, spent, policy.max_epsilon, policy.delta)


def _check_spending(release: Release, spent: Accountant, allowed: float, delta: float) -> None:
    """Refuse what costs more than is allowed, by itself or with all before; raises ProtocolViolation."""
    if (alone := Accountant((release,)).epsilon(delta)) > allowed:
        raise ProtocolViolation(
            checks.TOO_LITTLE_NOISE,
            f"this exchange alone costs epsilon {alone:.4g}, the policy allows {allowed:g}",
            asked=min(alone, _ENDLESS),
            allowed=allowed,
        )
    if (after := spent.epsilon(delta, further=release)) > allowed:
        raise ProtocolViolation(
            checks.PRIVACY_BUDGET,
            f"epsilon {spent.epsilon(delta):.4g} is spent, this exchange would make it {after:.4g}; "
            f"the policy allows {allowed:g}",
            asked=min(after, _ENDLESS),
            allowed=allowed,
        )


def _check_noise(task: Task, encoding: AnyEncoding, release: Release, settings: JobSettings) -> None:
    """The noise is what follows from the settings, and counts on no more clients than a sum is sure to have."""
    if task.protection is None:
        raise ProtocolViolation(Check.BAD_PARAMETERS, "a secure task must name its graph, threshold and key agreement")
    sure = noise_clients(len(task.cohort), task.quorum, task.protection)
    if release.shares > sure:
        raise ProtocolViolation(
            checks.NOISE_SHARES,
            f"the noise is shared out among {release.shares} clients, a sum is sure to hold those of {sure} only",
            asked=release.shares,
            allowed=max(0, sure),
        )
    try:
        plan = privacy_plan(settings)
        assert plan is not None  # noqa: S101 - the settings say the same as the encoding
        expected = private_encoding(
            encoding.settings,
            encoding.layout,
            len(task.cohort),
            plan=plan,
            noise_clients=release.shares,
            metrics=encoding.metrics or (),
        )
    except ConfigurationError as error:
        raise ProtocolViolation(checks.ENCODING_OFF_SETTINGS, str(error)) from None
    # The variance is computed with the machine's own functions: the last digits may differ.
    enough = release.variance >= expected.release.variance * (1 - _ROUNDING)
    if (
        not enough
        or replace(release, variance=expected.release.variance) != expected.release
        or (
            encoding.clip != expected.clip  # type: ignore[union-attr]
        )
    ):
        raise ProtocolViolation(
            checks.ENCODING_OFF_SETTINGS,
            "the encoding has less noise, or another kind, than the settings of the run ask for",
        )
