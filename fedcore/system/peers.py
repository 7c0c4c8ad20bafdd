"""Who failed first: when one of several processes ends, the others fail in their collectives and are not to blame."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from fedcore.errors import EnvironmentFailure

Failure = TypeVar("Failure")

BLAME_SECONDS: Final = 30.0
"""How long to wait for the failure of a peer that another process has lost: it shows at once, as a rule, but this
machine may be busy."""


class PeerLost(EnvironmentFailure):
    """The process at the other end of a connection is gone, or has been silent for too long."""


_SIGNS: Final = (
    "gloo/transport/",
    "DistBackendError",
    "DistNetworkError",
    f"{PeerLost.__module__}.{PeerLost.__qualname__}:",
)


def tells_of_lost_peer(text: str) -> bool:
    """Whether an exception, as its text or its traceback, says that another process ended.

    Gloo raises a bare RuntimeError for that, NCCL and the store a DistError.
    """
    return any(sign in text for sign in _SIGNS)


def first_cause(failures: Iterable[Failure], is_consequence: Callable[[Failure], bool]) -> Failure:
    """The first failure that does not come from another one; the very first where all of them do.

    Takes no more out of `failures` than it needs, so these may still be arriving; there is at least one.
    """
    failures = iter(failures)
    first = next(failures)
    if not is_consequence(first):
        return first
    return next((failure for failure in failures if not is_consequence(failure)), first)
