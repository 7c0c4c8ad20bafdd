"""The federations that a comparison runs in: server and clients stay, and serve one run after another."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from fedcore.compare.following import Given, Killing, follow
from fedcore.compare.problem import ROUNDS
from fedcore.compare.processes import LocalFederation, ProcessGroup, run_command
from fedcore.compare.results import Loss
from fedcore.compare.run import MODEL_FILE, ModeRun
from fedcore.errors import EnvironmentFailure, RunFailed
from fedcore.events import EventSink, RunEvent, ignore
from fedcore.federation import Policy
from fedcore.record import RunRecord
from fedcore.wire import Scalar

START_SECONDS: Final = 600.0
RUN: Final = "run"
JOIN_SECONDS: Final = 20.0
"""How long a run that is to lose a client waits for it to come back."""

WITHOUT_PRIVACY: Final[Mapping[str, Scalar]] = {"dp-epsilon": 0.0, "dp-noise-multiplier": 0.0}


@dataclass(slots=True)
class Federation:
    """One federation with secure policies and one whose owners allow plain updates, each started when first needed.

    They serve runs of the same app with the same number of clients. Use as a context manager: leaving it ends all
    processes. folder: for kits, logs and the servers' data.
    """

    folder: Path
    _warm: dict[bool, _Deployment] = field(default_factory=dict)
    _started: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for plain in tuple(self._warm):
            self._close(plain)

    def carry_out(self, run: ModeRun, emit: EventSink) -> Followed:
        """Submit one run and follow it to its end; the model lies in the run's folder where it finished.

        A federation that lost a process is not used again. Raises EnvironmentFailure where a process ends that was not
        to be killed.
        """
        plain = run.settings["aggregation"] == "plain"
        whole = False
        try:
            if plain not in self._warm:
                self._started += 1
                self._warm[plain] = _Deployment.start(self.folder / f"federation-{self._started}", run, plain=plain)
                self._warm[plain].warm_up(run)
            followed = self._warm[plain].carry_out(run, emit)
            whole = followed.record.status == "finished" and run.kill is None
        finally:
            if not whole:
                self._close(plain)
        return followed

    def _close(self, plain: bool) -> None:
        if (deployment := self._warm.pop(plain, None)) is not None:
            deployment.group.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A run that is over.

    models: for each exchange of the record, the SHA-256 of the model that its clients were given, "" for none.
    fetched: for each of them, who fetched that model in it; the others had it from the exchange before.
    """

    record: RunRecord
    losses: tuple[Loss, ...]
    models: tuple[str, ...]
    fetched: tuple[frozenset[str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deployment:
    """A server and clients that run. held: the model that each client has, by its name."""

    local: LocalFederation
    group: ProcessGroup
    held: dict[str, str] = field(default_factory=dict)

    @classmethod
    def start(cls, folder: Path, run: ModeRun, *, plain: bool) -> Self:
        """Start all processes and wait until every client is connected."""
        local = LocalFederation.create(folder / "kits", clients=run.sites, allow_plain=plain)
        group = ProcessGroup(folder / "logs", run.environment()).__enter__()
        try:
            local.start_server(group)
            local.start_clients(group, run.app.folder)
            deadline = time.monotonic() + START_SECONDS
            while not all("connected" in group.tail(name) for name in local.client_names()):
                group.check()
                if time.monotonic() > deadline:
                    raise EnvironmentFailure(f"not all clients connected in {START_SECONDS:g} s; see {group.logs}")
                time.sleep(0.1)
        except BaseException:
            group.stop()
            raise
        return cls(local=local, group=group)

    def warm_up(self, run: ModeRun) -> None:
        """One round that does not count: clients then have read their data and imported what a step needs.

        A baseline's workers do so before their first round, too. Raises RunFailed.
        """
        if ROUNDS not in run.config:
            return
        short = replace(run, folder=self.group.logs.parent / "warm-up", config={**run.config, ROUNDS: 1}, kill=None)
        settings = {**settings_of(short), **WITHOUT_PRIVACY}
        followed = self._follow(short, settings, ignore)
        if followed.record.status != "finished":
            raise RunFailed(followed.record.reason or "the first round ended without a word")

    def carry_out(self, run: ModeRun, emit: EventSink) -> Followed:
        """Submit a run and follow it."""
        return self._follow(run, settings_of(run), emit)

    def _follow(self, run: ModeRun, settings: Mapping[str, Scalar], emit: EventSink) -> Followed:
        out = run.folder / MODEL_FILE
        command = run_command(run.app.folder, self.local.operator, out=out, run_config=run.config, settings=settings)
        killing = Killing(group=self.group, kill=run.kill, sites=run.sites)
        given = Given(held=self.held)

        def show(event: RunEvent) -> None:
            emit(event)
            given.see(event)
            killing.see(event)

        child = self.group.start(RUN, command, piped=True)
        try:
            record = follow(self.group, child, show)
        finally:
            self.group.stop(RUN)
        return Followed(
            record=record,
            losses=killing.losses(record),
            models=tuple(given.models),
            fetched=tuple(given.fetched),
        )


def settings_of(run: ModeRun) -> dict[str, Scalar]:
    """The settings of the run; one that is to lose a client goes on with the others, where their policies allow it."""
    if run.kill is None:
        return dict(run.settings)
    fewest = 1 if run.settings["aggregation"] == "plain" else Policy.default(run.sites).min_cohort
    return {**run.settings, "min-clients": max(fewest, run.sites - 1), "join-seconds": JOIN_SECONDS}
