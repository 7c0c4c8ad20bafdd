"""Admission without one of its checks, for the attacks of the worlds `sums` and `groups` in proofs/maude."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedcore.errors import ProtocolViolation
from fedcore.federation.admission import draws
from fedcore.run import groups

Removal = Callable[[pytest.MonkeyPatch], None]


def without_release_check(name: str) -> Removal:
    """Do not call this function of `releases`."""
    return lambda patch: patch.setattr(f"fedcore.federation.admission.releases.{name}", lambda *_: None)


def without_signatures(patch: pytest.MonkeyPatch) -> None:
    """Take every answer to a draw for signed."""
    patch.setattr(groups, "check_ticket", lambda *_: None)


def with_any_number(patch: pytest.MonkeyPatch) -> None:
    """Take any number of answers for enough."""
    patch.setattr(groups, "needed_tickets", lambda _: 0)


def with_any_draw(patch: pytest.MonkeyPatch) -> None:
    """Answer draws without end."""
    patch.setattr(draws, "MOST_DRAWS", 1 << 30)


def without_reason(reason: str) -> Removal:
    """Go on with a group that is refused for this reason; for those after which nothing else is checked."""

    def remove(patch: pytest.MonkeyPatch) -> None:
        strict = groups.check_group

        def lenient(*args: Any, **keywords: Any) -> None:
            try:
                strict(*args, **keywords)
            except ProtocolViolation as refusal:
                if refusal.reason != reason:
                    raise

        patch.setattr(draws, "check_group", lenient)

    return remove
