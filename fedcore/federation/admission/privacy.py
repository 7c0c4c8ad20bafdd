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
from fedcore.errors import ConfigurationError, ProtocolViolation
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
        if (release := release_of(self.encoding)) is not None:
            self.history.spend(NoisedSum.of(self.task, release))

    def _check(self, without: Collection[NoisedSum]) -> None:
        check_privacy(self.task, self.encoding, self.settings, self.policy, self.history.spent(without=without))

    def _is_earlier(self, attempt: NoisedSum) -> bool:
        return attempt.run == self.task.run and attempt.exchange < self.task.exchange

    def _return_masked(self, present: Collection[int]) -> None:
        for attempt in self.history.attempts:
            if never_unmasked(attempt, self.chain, present=present if self._is_earlier(attempt) else ()):
                self.history.refund(attempt)


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
    if not policy.max_epsilon:
        return
    if (alone := Accountant((release,)).epsilon(policy.delta)) > policy.max_epsilon:
        raise ProtocolViolation(
            checks.TOO_LITTLE_NOISE,
            f"this exchange alone costs epsilon {alone:.4g}, the policy allows {policy.max_epsilon:g}",
            asked=min(alone, _ENDLESS),
            allowed=policy.max_epsilon,
        )
    if (after := spent.epsilon(policy.delta, further=release)) > policy.max_epsilon:
        raise ProtocolViolation(
            checks.PRIVACY_BUDGET,
            f"epsilon {spent.epsilon(policy.delta):.4g} is spent, this exchange would make it {after:.4g}; "
            f"the policy allows {policy.max_epsilon:g}",
            asked=min(after, _ENDLESS),
            allowed=policy.max_epsilon,
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
