"""A `fedcore compare` in real processes that is broken off and taken up again.

In a file of its own, since the files of the slow layers run side by side and this one takes as long as several.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.commands import forked
from support.deployment import MARK, PATIENCE, assert_none_left, command_lines, wait_until
from support.tiny import TINY

from fedcore.comparison.local_federation import FEDCORE
from fedcore.system.workers.child_processes import ChildProcesses

INTERRUPTED = 130


class Comparison:
    """A `fedcore compare` of the tiny app in the background, and all that it starts: a short run and one at a gate."""

    def __init__(self, group: ChildProcesses, mark: str, folder: Path) -> None:
        self.mark = mark
        self.out = folder / "out"
        self.gate = folder / "gate"
        for log in self._client_logs():  # of a comparison before
            log.unlink()
        words = [*FEDCORE, *self.words()]
        self.process: subprocess.Popen[str] = group.start("compare", words, piped=True)

    def _client_logs(self) -> list[Path]:
        """Of all federations; looked for where they lie, since the server's data folders come and go meanwhile."""
        return list(self.out.glob("federation/*/logs/client-*.log"))

    def _is_at_gate(self) -> bool:
        """Whether a client says so in its log."""
        return any("at the gate" in path.read_text() for path in self._client_logs())

    def words(self) -> list[str | Path]:
        """The command that both began it and takes it up again."""
        sweep = f'gate="","{self.gate}"'
        return ["compare", TINY, "--clients", "2", "--modes", "federated", "--set", sweep, "--out", self.out]

    def wait_for_training(self) -> None:
        """Until the second run's clients are at its gate."""
        wait_until("the second run to train", self._is_at_gate)

    def parts(self) -> list[str]:
        """The processes that it has started, by what they are."""
        return sorted(line for line in command_lines(self.mark) if " compare " not in line)


@contextmanager
def background(folder: Path) -> Iterator[ChildProcesses]:
    environment = {"FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1", MARK: mark_of(folder)}
    with ChildProcesses(folder / "logs", environment) as processes:
        yield processes
    assert_none_left(mark_of(folder))


def mark_of(folder: Path) -> str:
    """What tells the processes of a test from others: no path, which user code would be let in to read."""
    return f"of {folder}"


def test_a_comparison_that_is_ended_leaves_no_process_and_goes_on(tmp_path: Path) -> None:
    ended_by(signal.SIGINT, INTERRUPTED, tmp_path)
    (kept,) = (tmp_path / "out").glob("runs/*/result.json")
    before = kept.stat().st_mtime_ns
    comparison = ended_by(signal.SIGKILL, -signal.SIGKILL, tmp_path)
    comparison.gate.touch()
    again = forked(*comparison.words(), "--json")
    assert again.returncode == 0, again.stderr
    assert f"run 2 of 2: federated, gate={comparison.gate}, seed 0" in again.stderr
    assert "run 1 of 2" not in again.stderr
    assert [run["status"] for run in json.loads(again.stdout)["runs"]] == ["finished", "finished"]
    assert kept.stat().st_mtime_ns == before


def ended_by(number: signal.Signals, status: int, folder: Path) -> Comparison:
    """Begin the comparison or take it up again, end it in its second run, and see its processes go."""
    with background(folder) as group:
        comparison = Comparison(group, mark_of(folder), folder)
        comparison.wait_for_training()
        assert len([part for part in comparison.parts() if "fedcore" in part or "_app" in part]) >= 7, (
            "server, ServerApp, two agents with a rank each, fedcore run"
        )
        comparison.process.send_signal(number)
        assert comparison.process.wait(PATIENCE) == status
        wait_until("all processes to end", lambda: not comparison.parts())
    return comparison
