"""The rounds whose update was aggregated, for apps that keep state from round to round.

What an algorithm keeps on a client (`fedcore.flower.apps.local_algorithms`) moves on with its update, and must not if
the update was in no sum. The client can tell: once it has released its shares for a sum that names it among the
survivors, the update counts, unless the same exchange is repeated. The rounds are on disk, since the ranks may end
between two of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from fedcore.errors import ConfigurationError
from fedcore.system.files import write_file
from fedcore.wire.tasks import Task

ROUNDS_FILE: Final = "counted.json"
_MOST: Final = 2
"""The last round may be repeated; then the one before counts."""


class AggregatedRounds:
    """The last rounds of a run whose update was aggregated, in a file of the client's state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / ROUNDS_FILE

    def last(self, run: str) -> int:
        """The last one; 0 for none."""
        return max(self._of(run), default=0)

    def begin(self, task: Task) -> None:
        """A training begins, perhaps a repeated one: it does not count yet."""
        rounds = self._of(task.run)
        if task.trains and task.server_round in rounds:
            self._write(task.run, [number for number in rounds if number != task.server_round])

    def add(self, task: Task) -> None:
        """Count a round: this client's part in the sum is done."""
        if task.trains:
            self._write(task.run, [*self._of(task.run), task.server_round][-_MOST:])

    def _of(self, run: str) -> list[int]:
        try:
            content = json.loads(self._path.read_bytes())
            return [int(number) for number in content["rounds"]] if content["run"] == run else []
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, KeyError):
            raise ConfigurationError(
                f"{self._path} is damaged; remove it, and an app that keeps state from round to round continues "
                "from the round before the last"
            ) from None

    def _write(self, run: str, rounds: list[int]) -> None:
        write_file(self._path, json.dumps({"run": run, "rounds": rounds}), durable=True)
