"""Resolution of a run's name: its id, the beginning of one, or `last`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from client_app.operator.client import OperatorClient
from fedcore.errors import ConfigurationError, Refused
from fedcore.wire.operator import MOST_LISTED, RunInfo
from fedcore.wire.problems import ProblemKind

LAST: Final = "last"


def resolve_run(client: OperatorClient, word: str) -> str:
    """The id of the run that `word` names; raises ConfigurationError if there is none, or more than one."""
    if word == LAST:
        newest = client.list_runs(limit=1).runs
        if not newest:
            raise ConfigurationError("there is no run yet; submit one: fedcore run APP_DIR")
        return newest[0].run
    try:
        return client.state_of(word).run
    except Refused as refused:
        if refused.kind != ProblemKind.NOT_FOUND:
            raise
    matches = [info.run for info in every_run(client) if info.run.startswith(word)]
    if len(matches) > 1:
        raise ConfigurationError(
            f"{len(matches)} runs begin with {word}, among them {', '.join(matches[:4])}; give more of the id",
            check="ambiguous",
        )
    if not matches:
        raise ConfigurationError(f"there is no run {word}; to list the runs: fedcore runs list", check="no-run")
    return matches[0]


def resolve_earlier(client: OperatorClient, word: str) -> str:
    """The same for a run that the server may have forgotten: its records stay, under its whole id."""
    try:
        return resolve_run(client, word)
    except ConfigurationError as error:
        if error.check != "no-run":
            raise
        return word


def every_run(client: OperatorClient, *, status: str = "") -> Iterator[RunInfo]:
    """All runs, the newest first, page by page."""
    before, more = "", True
    while more:
        page = client.list_runs(limit=MOST_LISTED, before=before, status=status)
        yield from page.runs
        more = page.more
        before = page.runs[-1].run if page.runs else ""
