"""Which of this client's trainings were in their sums, for apps that keep something from round to round.

What an algorithm keeps on a client (`fedcore.flower.apps.local_algorithms`) moves on with its update, and must not
where the
update was in no sum. The client knows: once it has released its shares for a sum that names it among the survivors, the
update counts, unless the same exchange is tried again. On the disk, since the ranks may end between two rounds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from fedcore.errors import ConfigurationError
from fedcore.system.files import write_file
from fedcore.wire.control import Task

COUNTED_FILE: Final = "counted.json"
_KEPT: Final = 2
"""The last round may be tried again; then the one before counts."""


class CountedRounds:
    """The last rounds of a run whose training counted, in a file of the client's state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / COUNTED_FILE

    def last(self, run: str) -> int:
        """The last one; 0 for none."""
        return max(self._of(run), default=0)

    def begin(self, task: Task) -> None:
        """A training begins, maybe again: it does not count yet."""
        rounds = self._of(task.run)
        if task.trains and task.server_round in rounds:
            self._write(task.run, [number for number in rounds if number != task.server_round])

    def note(self, task: Task) -> None:
        """The client's part in the sum is done."""
        if task.trains:
            self._write(task.run, [*self._of(task.run), task.server_round][-_KEPT:])

    def _of(self, run: str) -> list[int]:
        try:
            kept = json.loads(self._path.read_bytes())
            return [int(number) for number in kept["rounds"]] if kept["run"] == run else []
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, KeyError):
            raise ConfigurationError(
                f"{self._path} is damaged; remove it, and an app that keeps something from round to round goes on "
                "from the round before the last"
            ) from None

    def _write(self, run: str, rounds: list[int]) -> None:
        write_file(self._path, json.dumps({"run": run, "rounds": rounds}), durable=True)
