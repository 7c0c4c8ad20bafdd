"""Which run a person means: by its id, by the beginning of it, or the last one that was submitted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from client_app.operator.client import OperatorClient
from fedcore.errors import ConfigurationError, Refused
from fedcore.wire.control import ProblemKind
from fedcore.wire.operator import MOST_LISTED, RunInfo

LAST: Final = "last"
_NO_EVENTS: Final = 2**31 - 1


def find_run(client: OperatorClient, word: str) -> str:
    """The id of the run that `word` names; raises ConfigurationError where there is none, or more than one."""
    if word == LAST:
        newest = client.list_runs(limit=1).runs
        if not newest:
            raise ConfigurationError("there is no run yet; submit one: fedcore run APP_DIR")
        return newest[0].run
    try:
        return client.show(word, after=_NO_EVENTS).run
    except Refused as refused:
        if refused.kind != ProblemKind.NOT_FOUND:
            raise
    found = [info.run for info in every_run(client) if info.run.startswith(word)]
    if len(found) > 1:
        raise ConfigurationError(
            f"{len(found)} runs begin with {word}, {', '.join(found[:4])} among them; say more of it", check="ambiguous"
        )
    if not found:
        raise ConfigurationError(
            f"there is no run {word}; fedcore runs list shows those that there are", check="no-run"
        )
    return found[0]


def every_run(client: OperatorClient, *, status: str = "") -> Iterator[RunInfo]:
    """All runs, the newest first, page by page."""
    before, more = "", True
    while more:
        page = client.list_runs(limit=MOST_LISTED, before=before, status=status)
        yield from page.runs
        more = page.more
        before = page.runs[-1].run if page.runs else ""
