"""Retry policy for a failed exchange, shared by server and simulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Self, TypeAlias

from fedcore.errors import (
    DamagedAtRest,
    NothingContributed,
    OtherForms,
    RepliesDiffer,
    RoundFailed,
    RoundingTooCoarse,
    TooFewContributed,
    UpdateTooLarge,
)
from fedcore.run.settings import JobSettings
from fedcore.wire.events import ExchangeFailed, ExchangeRepeated

Traffic: TypeAlias = dict[str, dict[str, int]]
"""`bytes_up`, `bytes_down` and `update_bytes` of an event, by the names of clients."""

MOST_REPEATS: Final = 4
"""How often an exchange is repeated with larger scales or wider fields, or since the server's disk had damaged it.

Each time scales grow 64 times at least, and there are two widths beyond the usual ones, so that is plenty.
"""
LONGEST_PAUSE: Final = 60.0
"""Seconds between two attempts at most, but for the jitter."""


@dataclass(slots=True, kw_only=True)
class Attempts:
    """The attempts at one exchange.

    has_room: whether a sum over a whole cohort tolerates so many clients that contribute nothing; arguments: how many
    do, and of how many. same: who is asked in the next attempt, and nobody in their place; None for anybody.
    """

    settings: JobSettings
    has_room: Callable[[int, int], bool]
    same: tuple[int, ...] | None = field(default=None, init=False)
    _left: int = field(init=False)
    _repeats: int = field(default=0, init=False)
    _damaged: int = field(default=0, init=False)
    _too_few: bool = field(default=False, init=False)
    _failed: int = field(default=0, init=False)
    _lasted: float = field(default=math.inf, init=False)

    def __post_init__(self) -> None:
        self._left = self.settings.max_attempts

    @classmethod
    def plain(cls, settings: JobSettings) -> Self:
        """Those at an exchange that makes no sum: at plain replies, or at a draw."""
        return cls(settings=settings, has_room=lambda *_: False)

    @property
    def all_survive(self) -> bool:
        """Whether all clients of the next attempt have to survive."""
        return self._too_few or self.same is not None

    def go_on(
        self,
        error: RoundFailed,
        cohort: Collection[int],
        survivors: Collection[int],
        *,
        free: bool,
        seconds: float = math.inf,
    ) -> bool:
        """Whether there is another attempt after one that ended with `error`; `whole` and `same` are about that one.

        cohort: its cohort. survivors: whose updates were in the sum, where it came that far. free: whether it does not
        count, because the client to blame is excluded. seconds: how long it lasted, for `pause`.

        An update that is too large ends no attempt but repeats it, with scales that are wide enough and the same
        clients: they refuse a sum of others. So does a sum that is too coarse, with wider fields. Where too many
        failed, the whole cohort has to survive, if that leaves room for so many. What was damaged on the server's disk
        is made again, which does not count; by the same clients where it was known whose updates were in the sum. One
        that another version had begun is asked for again, which does not count either: a server that continues it is
        of that version. After any other failure anybody may be asked again.
        """
        self._lasted = math.inf
        if isinstance(error, UpdateTooLarge | RoundingTooCoarse):
            self._repeats += 1
            self.same = tuple(sorted(survivors))
            helps = error.helps if isinstance(error, RoundingTooCoarse) else self.settings.clipping == "repeat"
            return helps and self._repeats <= MOST_REPEATS
        if isinstance(error, DamagedAtRest):
            self._damaged += 1
            self.same = tuple(sorted(survivors)) or None
            return self._damaged <= MOST_REPEATS
        if isinstance(error, OtherForms):  # its own name says why; any clients may be asked
            self.same = None
            return True
        if not free:
            self._left -= 1
            self._failed += 1
            self._lasted = seconds
        again = self._left > 0 and not isinstance(error, NothingContributed | RepliesDiffer)
        if isinstance(error, TooFewContributed):
            again = again and not self.all_survive and self.has_room(error.failures, len(cohort))
            self._too_few = True
        self.same = None
        return again

    def pause(self, first: float, jitter: float) -> float:
        """Seconds to wait before the next attempt: those that fail at once must not use up all of them at once.

        So clients that cannot take part for a moment, since a line broke or a server was restored, have time to come
        back. An attempt that lasted longer was time enough, and what is only repeated does not wait. A simulation does
        not ask, since nobody comes back to it meanwhile.

        first: after the first failed attempt; each further one doubles it, up to `LONGEST_PAUSE`.
        jitter: from 0 to 1; spreads what failed together.
        """
        if not self._failed:
            return 0.0
        return max(min(first * 2.0 ** (self._failed - 1), LONGEST_PAUSE) * (0.5 + jitter) - self._lasted, 0.0)


def attempt_ended(
    error: RoundFailed,
    reason: str,
    exchange: int,
    server_round: int,
    survivors: int,
    *,
    again: bool,
    traffic: Traffic | None = None,
) -> ExchangeFailed | ExchangeRepeated:
    """The facts of an attempt without a sum.

    reason: why, in words. survivors: how many clients were in the sum. traffic: what travelled.
    """
    traffic = traffic or {}
    if isinstance(error, UpdateTooLarge | RoundingTooCoarse) and again:
        return ExchangeRepeated(
            exchange=exchange,
            server_round=server_round,
            large=error.large if isinstance(error, UpdateTooLarge) else 0,
            survivors=survivors,
            coarse=error.tensor if isinstance(error, RoundingTooCoarse) else "",
            **traffic,
        )
    return ExchangeFailed(exchange=exchange, server_round=server_round, reason=reason, retry=again, **traffic)


def final_reason(error: RoundFailed, settings: JobSettings) -> str:
    """Why there is no other attempt, as far as `error` tells; what to set, where that helps."""
    match error:
        case UpdateTooLarge() if settings.clipping == "repeat":
            return (
                f"{error}, and after {MOST_REPEATS} repeats with wider scales they still do. Lower the learning rate, "
                "or bound the updates by clip-norm"
            )
        case UpdateTooLarge():
            return (
                f'{error}. Set clipping = "repeat" to try again with wider scales, or "warn" to cut off what '
                "does not fit; or bound the updates by clip-norm"
            )
        case RoundingTooCoarse():
            return (
                f"{error}. If another tensor of the exchange changes by far more, keep one of the two out of the "
                "model's state, or bring what it comes from to a common scale (as by standardizing the columns of a "
                "table). If all change by so little, raise the learning rate, or lower w-max to the most examples of a "
                "client"
            )
        case NothingContributed() | RepliesDiffer() | TooFewContributed():
            return f"{error}; retrying unchanged will fail again (fedcore check in the app's folder may show why)"
        case _:
            return str(error)
