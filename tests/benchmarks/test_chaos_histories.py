"""Kills and faults over a federation of real processes, drawn by hypothesis: what fails is shrunk to a short history.

FEDCORE_CHAOS_HISTORIES says how many are drawn, FEDCORE_CHAOS_STEPS how long they are. Without the first it is one
history, always the same, and what fails is not shrunk, which takes minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from benchmarks.chaos_checks import judge_told
from benchmarks.chaos_clients import clients_of
from benchmarks.chaos_faults import FAULTS, KINDS
from benchmarks.chaos_runs import APP, RUNS, STRATEGIES, RunPlan
from benchmarks.chaos_sites import PATIENCE, Limits, Site, site

HISTORIES = int(os.environ.get("FEDCORE_CHAOS_HISTORIES", "0"))
STEPS = int(os.environ.get("FEDCORE_CHAOS_STEPS", "3"))
NO_LIMITS = Limits(kills=0, faults=0, deadline=0.0, app_share=0.0, kinds=FAULTS, runs=tuple(RUNS))


class AnyFaults(RuleBasedStateMachine):
    """A run is always under way; whatever happens to it, it ends, with each update once in its sum."""

    def __init__(self) -> None:
        super().__init__()
        self._loop, self._stack = asyncio.Runner(), contextlib.AsyncExitStack()
        self._site = self._loop.run(self._open())
        self._plan = RunPlan("secure", "fedavg")
        self._run: asyncio.Task[None] | None = None

    @initialize(kind=st.sampled_from(list(RUNS)), strategy=st.sampled_from(STRATEGIES))
    def plan(self, kind: str, strategy: str) -> None:
        self._plan = RunPlan(kind, strategy)

    @rule(kind=st.sampled_from(list(KINDS)))
    def suffer(self, kind: str) -> None:
        self._loop.run(self._suffer(kind))

    @invariant()
    def nothing_was_found(self) -> None:
        assert self.findings() == []

    def teardown(self) -> None:
        try:
            self._loop.run(self._end())
            assert self.findings() == []
        finally:
            self._loop.run(self._stack.aclose())
            self._loop.close()

    def findings(self) -> list[str]:
        return [text for verdict in self._site.verdicts.values() for text in verdict.findings]

    async def _open(self) -> Site:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="fedcore-chaos-"))) / "sqlite"
        folder.mkdir()
        here = await self._stack.enter_async_context(site(folder, "sqlite", NO_LIMITS, {}))
        await self._stack.enter_async_context(clients_of(here.federation.clients, APP, here.target.log))
        return here

    async def _suffer(self, kind: str) -> None:
        if self._run is None or self._run.done():
            await self._end()
            self._run = asyncio.create_task(self._site.carry_out(self._plan))
        if self._site.target.possible(kind):
            await self._site.target.inflict(kind, PATIENCE)

    async def _end(self) -> None:
        if self._run is not None:
            await self._run
        judge_told(self._site.verdicts[self._plan.kind], self._site.target.log)


AnyFaults.TestCase.settings = settings(
    max_examples=HISTORIES or 1,
    derandomize=not HISTORIES,
    database=None,
    stateful_step_count=STEPS,
    deadline=None,
    phases=(Phase.generate, Phase.shrink) if HISTORIES else (Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
TestAnyFaults = AnyFaults.TestCase
