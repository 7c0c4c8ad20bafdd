"""What goes wrong in the local work of simulated clients, which then contribute nothing, as in a federation."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from fedcore.errors import EnvironmentFailure, FedcoreError, RoundFailed
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.simulation.workers.executor import ClientExecutor
from fedcore.state import ModelState
from fedcore.wire.tasks import Task

NOTHING: Final = LocalResult(examples=0, metrics={})
"""The result of a client whose local work failed."""


@dataclass(slots=True)
class LocalFailures:
    """The clients of an exchange, or of a buffered run, whose local work failed.

    name
        Of a client.
    errors
        What the app of each raised, or that it took too long.
    """

    name: Callable[[int], str]
    errors: dict[int, BaseException] = field(default_factory=dict, init=False)
    _unreported: dict[int, BaseException] = field(default_factory=dict, init=False)
    _printed: set[str] = field(default_factory=set, init=False)

    @property
    def first(self) -> BaseException | None:
        """The error of the client with the least id; None without one."""
        return self.errors[min(self.errors)] if self.errors else None

    def results(
        self,
        executor: ClientExecutor,
        task: Task,
        model: ModelState | None,
        clients: Sequence[int],
        *,
        limit: float | None = None,
    ) -> Iterator[tuple[int, LocalResult]]:
        """What the clients' apps make of a task, in any order; nothing of those that fail.

        limit
            Seconds of local work after which a client contributes nothing; None for any number.
        """
        waiting = set(clients)
        for client, result in executor.run(task, model, clients, self.note):
            if limit is not None and result.seconds > limit:
                allowed = f"{limit:g} s were allowed (the strategy's timeout, train-seconds)"
                self.note(client, RoundFailed(f"local work of {result.seconds:.3g} s, {allowed}", check="too-late"))
            else:
                waiting.remove(client)
                yield client, result
        yield from ((client, NOTHING) for client in sorted(waiting))

    def note(self, client: int, error: BaseException) -> None:
        """A client contributes nothing. Raises an error that is the machine's, and so ends the run."""
        if isinstance(error, EnvironmentFailure):
            raise error
        self.errors[client] = self._unreported[client] = error
        trace = "" if isinstance(error, FedcoreError) else "".join(traceback.format_exception(error))
        if trace not in self._printed:
            self._printed.add(trace)
            sys.stderr.write(trace)

    def forget(self, client: int) -> None:
        """What the client does next has another result."""
        self.errors.pop(client, None)

    def report(self) -> str:
        """Who has failed since the last report, in a line; empty if nobody has."""
        if not self._unreported:
            return ""
        failed, self._unreported = self._unreported, {}
        client, error = min(failed.items())
        reason = traceback.format_exception_only(error)[-1].strip()
        if isinstance(error, FedcoreError):
            reason = str(error)
        if len(failed) == 1:
            return f"{self.name(client)} contributes nothing: {reason}"
        names = ", ".join(map(self.name, sorted(failed)[:10])) + (", ..." if len(failed) > 10 else "")
        return f"{len(failed)} clients contribute nothing ({names}); {self.name(client)}: {reason}"
