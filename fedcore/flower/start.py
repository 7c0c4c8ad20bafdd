"""How a ServerApp begins: what the server's process of a run and a process that derives its first model have alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self

from fedcore.run.quorum import noise_shares
from fedcore.run.settings import JobSettings
from fedcore.wire.base import Message, Name, Scalar


class ServerAppStart(Message):
    """What decides how a ServerApp begins, apart from an initial model: the same here and there, the same first model.

    app
        The path of its folder.
    groups
        Into how many a training is cut, each with a reply of its own.
    least_groups
        How many of them are sure to have one.
    buffered
        Whether a training sums updates of several rounds.
    noised
        Whether secure sums have privacy noise.
    compressed
        Whether updates lose a part, evenly.
    members
        How many the federation has.
    quorum, max_corrupt, max_dropout
        As in `JobSettings`.
    """

    app: str
    run: Name
    run_config: dict[str, Scalar]
    aggregation: Literal["secure", "plain"]
    groups: int = 1
    least_groups: int = 1
    buffered: bool = False
    noised: bool = False
    compressed: bool = False
    members: int | None = None
    quorum: int = 0
    max_corrupt: float = 0.05
    max_dropout: float = 0.1

    @classmethod
    def of(cls, settings: JobSettings, **others: Any) -> Self:
        """The start of a run with these settings.

        Args:
            settings: the run's; a client's copy lacks what binds no client.
            others: the fields that do not follow from them, or not from a client's copy: aggregation and least_groups.
        """
        derived: dict[str, Any] = {
            "groups": settings.groups,
            "least_groups": settings.least_groups,
            "buffered": settings.buffered,
            "noised": settings.private,
            "compressed": settings.compresses,
            "quorum": settings.quorum,
            "max_corrupt": settings.max_corrupt,
            "max_dropout": settings.max_dropout,
        }
        return cls(**{**derived, **others})

    def noise_shares(self, members: Callable[[], int | None]) -> Callable[[int], int]:
        """For `run_server_app`; `members` says how many the federation has."""
        settings = JobSettings(
            aggregation=self.aggregation, quorum=self.quorum, max_corrupt=self.max_corrupt, max_dropout=self.max_dropout
        )
        return lambda n: noise_shares(settings, n, members())
