"""The operator's client of another package, found by its entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from fedcore.errors import EnvironmentFailure
from fedcore.monitoring.output_paths import OutputPaths
from fedcore.wire.events import Recorded, RunOut
from fedcore.wire.operator import RunInfo, ServerOut

if TYPE_CHECKING:
    from fedcore.data.reports.options import StatsOptions
    from fedcore.data.reports.report import ColumnsReport

_GROUP: Final = "fedcore.operator"


class RemoteOperator(Protocol):
    """What the operator's part of fedcore does with a kit; every method raises FedcoreError."""

    def submit(
        self,
        app: Path,
        run_config: Mapping[str, Any],
        settings: Mapping[str, Any],
        initial: Path | None,
        statistics_from: str = "",
    ) -> str: ...

    def follow(self, run: str, emit: Callable[[Recorded], None], away: Callable[[str], None]) -> RunOut: ...

    def cancel(self, run: str) -> None: ...

    def runs(self, limit: int) -> list[RunInfo]: ...

    def members(self) -> ServerOut: ...

    def show(self, word: str) -> RunOut: ...

    def fetch(self, run: RunOut, home: OutputPaths) -> dict[str, Any]: ...

    def statistics(self, app: Path, options: StatsOptions) -> ColumnsReport: ...


def remote_operator(kit: Path, server: str = "", connect_seconds: float = 30.0) -> RemoteOperator:
    """The operator of a kit's federation, which an entry point brings, since the library imports no app.

    Raises KitError for a folder that is no operator's kit.

    Args:
        kit: the operator's kit.
        server: its address, in place of the one in the kit.
        connect_seconds: how long it may be away.
    """
    from fedcore.federation import OperatorKit

    OperatorKit.load(kit)
    entries = entry_points(group=_GROUP)
    if not entries:
        raise EnvironmentFailure(
            f"this installation of fedcore has no entry point {_GROUP!r}, so it cannot operate a federation; install "
            "fedcore again"
        )
    make = next(iter(entries)).load()
    return cast(RemoteOperator, make(kit, server, connect_seconds))
