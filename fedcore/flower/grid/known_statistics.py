"""Statistics of columns that are known when a ServerApp begins, so that it asks nobody for them.

They are those of an earlier run (`fedcore run --statistics-from`), or, where a client derives the first model, those
that the federation's messages name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from fedcore.data.statistics import PREFIX
from fedcore.errors import ConfigurationError


@dataclass(slots=True)
class KnownStatistics:
    """What is known.

    values: as `Statistics.as_config` gives them, and other keys of a message's configuration.
    source: the earlier run that they are of, which the run was asked to take them from; "" if nobody asked for it.
    """

    values: Mapping[str, Any]
    source: str = ""
    _in_use: bool = field(default=False, init=False)

    def take(self, columns: object) -> dict[str, Any]:
        """The values; raises ConfigurationError if they lack some of the columns that an app needs.

        Args:
            columns: their bounds by name, or one pair of bounds for all columns that there are.
        """
        self._in_use = True
        known = set(self.values.get(f"{PREFIX}columns", ()))
        if self.source and isinstance(columns, Mapping) and (missing := sorted(set(columns) - known)):
            raise ConfigurationError(
                f"run {self.source} has no statistics of {', '.join(missing[:5])}, which the app needs now. Name a run "
                "of the same columns (--statistics-from), or leave the option out, so that the clients are asked",
                check="no-statistics",
            )
        return {key: value for key, value in self.values.items() if key.startswith(PREFIX)}

    def check_use(self) -> None:
        """Refuse to go on past statistics that the run was asked to take; raises ConfigurationError."""
        if self.source and not self._in_use:
            raise ConfigurationError(
                f"the run is to take the statistics of run {self.source}, and the app does not ask for any by its "
                "TrainingColumns: leave --statistics-from out",
                check="statistics-not-in-use",
            )


_known: ContextVar[KnownStatistics | None] = ContextVar("statistics that are known", default=None)


def known_statistics() -> KnownStatistics | None:
    """What is known here; None if the clients are to be asked."""
    return _known.get()


@contextmanager
def statistics_of(values: Mapping[str, Any] | None, source: str = "") -> Iterator[None]:
    """Within the block `known_statistics` gives these; None for none."""
    token = _known.set(None if values is None else KnownStatistics(values, source))
    try:
        yield
    finally:
        _known.reset(token)
