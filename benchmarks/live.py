"""A federation of real processes on this machine, and an operator who submits runs to it."""

from __future__ import annotations

import contextlib
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common import quiet_environment
from client_app.operator.client import OperatorClient
from client_app.operator.run_submission import make_submission
from fedcore.comparison.local_federation import FEDCORE, LocalFederation
from fedcore.errors import EnvironmentFailure, RunFailed
from fedcore.federation import OperatorKit
from fedcore.monitoring.run_record import RunRecord
from fedcore.system.workers.child_processes import ChildProcesses
from fedcore.wire.base import Scalar
from fedcore.wire.events import RunEvent, ignore
from fedcore.wire.operator import RunStatus, ServerOut

JOIN_SECONDS = 180.0
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFederation:
    """A server, its clients, and the operator.

    server_pid: the process that answers requests; the ServerApp of a run is a child of it.
    """

    app: Path
    clients: int
    server_pid: int
    group: ChildProcesses
    operator: OperatorClient
    operator_folder: Path

    def run(
        self,
        *,
        run_config: Mapping[str, Scalar],
        settings: Mapping[str, Any],
        out: Path | None = None,
        hear: Callable[[RunEvent], None] = ignore,
    ) -> RunRecord:
        """Submit one run, follow it to its end, and save its model to `out`; raises RunFailed.

        hear: told each event a moment after it happened.
        """
        settings = {"min-clients": self.clients, **settings}
        submission = make_submission(self.app, {"min-nodes": self.clients, **run_config}, settings)
        submitted = state = self.operator.submit(submission)
        record = RunRecord()
        for state in self.operator.follow(submitted.run):
            self.group.check()
            for event in state.events:
                record.add(event.event, event.seconds)
                hear(event.event)
        if state.status is not RunStatus.FINISHED:
            # The folder with the logs is gone when somebody reads this.
            log = self.group.tail("server", lines=20)
            raise RunFailed(f"the run {state.status.value}: {state.reason}; the end of the server's log:\n{log}")
        if record.dropouts or record.failures:
            raise RunFailed(f"not every client took part in every exchange: {[*record.dropouts, *record.failures]}")
        if out is not None and state.model is not None:
            self.operator.fetch_model(state.run, state.model, out)
        return record


@contextlib.contextmanager
def live_federation(
    app: Path,
    *,
    clients: int,
    allow_plain: bool = False,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, Sequence[str]] | None = None,
    lines: Callable[[LocalFederation], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> Iterator[LiveFederation]:
    """Start everything in a temporary folder; all clients have joined when the block begins.

    options: more words for the commands of some clients, by name.
    lines: what has to be there before anything starts, and as long, such as lines that the clients' kits name.
    """
    with tempfile.TemporaryDirectory(prefix="fedcore-benchmark-") as name:
        folder = Path(name)
        federation = LocalFederation.create(folder / "federation", clients=clients, allow_plain=allow_plain)
        with (
            lines(federation),
            ChildProcesses(folder / "logs", {**quiet_environment(), **(environment or {})}) as group,
        ):
            server = group.start("server", [*FEDCORE, "server", "--federation", federation.folder])
            federation.start_clients(group, app, options)
            kit = OperatorKit.load(federation.operator)
            wait_for_clients(kit, group, clients)
            with OperatorClient(kit) as operator:
                yield LiveFederation(
                    app=app,
                    clients=clients,
                    server_pid=server.pid,
                    group=group,
                    operator=operator,
                    operator_folder=federation.operator,
                )


def wait_for_clients(kit: OperatorKit, group: ChildProcesses, clients: int) -> None:
    """Until all are connected; raises EnvironmentFailure if one ends or they take too long."""
    context = ssl.create_default_context(cafile=str(kit.ca_file))
    headers = {"Authorization": f"Bearer {kit.token}"}
    deadline = time.monotonic() + JOIN_SECONDS
    with httpx.Client(base_url=kit.servers[0], headers=headers, verify=context, trust_env=False) as http:
        while time.monotonic() < deadline:
            group.check()
            with contextlib.suppress(httpx.TransportError):
                answer = ServerOut.model_validate_json(http.get("/v1/clients").raise_for_status().content)
                if sum(client.online for client in answer.clients) == clients:
                    return
            time.sleep(_POLL_SECONDS)
    raise EnvironmentFailure(f"not all of the {clients} clients connected within {JOIN_SECONDS:g} s")
