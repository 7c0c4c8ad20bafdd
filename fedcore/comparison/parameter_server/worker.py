"""The process of one worker: pull the model, compute a gradient, push it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Generator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedcore.comparison.measure.traffic import TcpBytes
from fedcore.comparison.parameter_server.messages import Pair, PushPullReply, PushPullRequest, be_local, new_header
from fedcore.comparison.parameter_server.shard import FlatModel, KeyRanges
from fedcore.comparison.parameter_server.task import BytesUntil, ServerTask, shard_name
from fedcore.comparison.parameter_server.update_order import Push
from fedcore.comparison.workers.problem import Problem
from fedcore.comparison.workers.processes import ReportSink
from fedcore.training.engines import Batch, Engine
from fedcore.training.seeds import seeded


@dataclass(slots=True)
class ServerLink:
    """A worker's connections to all shards.

    weights, gradient: float32 [size], the model and what is pushed.
    """

    pairs: list[Pair]
    ranges: KeyRanges
    weights: Tensor = field(init=False)
    gradient: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.weights, self.gradient = torch.zeros(self.ranges.size), torch.zeros(self.ranges.size)

    def send(self, request: PushPullRequest) -> None:
        """Ask for the model, and push the gradient if the request says so; the leading shard is the last to get it."""
        header = request.header()
        for pair, part in reversed(self._parts(self.gradient)):
            pair.send(header, None if request.push is None else part)

    def receive(self) -> PushPullReply:
        """Wait for the model."""
        return self._receive(self._parts(self.weights))

    def released(self) -> PushPullReply:
        """Wait until the last push was applied."""
        return self._receive([(pair, None) for pair in self.pairs])

    def _receive(self, parts: list[tuple[Pair, Tensor | None]]) -> PushPullReply:
        headers = []
        for pair, part in parts:
            headers.append(new_header())
            pair.receive(headers[-1], part)
        return PushPullReply.read(headers[0])

    def _parts(self, vector: Tensor) -> list[tuple[Pair, Tensor | None]]:
        return [
            (pair, vector[span.start : span.stop]) for pair, span in zip(self.pairs, self.ranges.ranges, strict=True)
        ]


def run_worker(report: ReportSink, task: ServerTask, worker: int) -> None:
    """Train on one site's data until its last batch is pushed."""
    be_local()
    os.environ["LOCAL_RANK"] = str(worker)  # workers share out the devices of the machine
    problem = task.problem()
    with seeded(problem.order_seed(worker, 1)):
        practice = task.engine(problem)
        ranges = KeyRanges.of(practice.module, shards=task.shards)
        _PushPullWorker(task, problem, practice, ServerLink([], ranges), report, worker).practise()
    engine = task.engine(problem)
    task.wait_for_all(worker)
    pairs = [
        Pair.join(task.worker_meeting_point(worker, shard), shard_name(shard), seconds=task.seconds)
        for shard in range(task.shards)
    ]
    _PushPullWorker(task, problem, engine, ServerLink(pairs, ranges), report, worker).run()


@dataclass(slots=True)
class _PushPullWorker:
    task: ServerTask
    problem: Problem
    engine: Engine
    link: ServerLink
    report: ReportSink
    number: int
    _round: int = 0

    def practise(self) -> None:
        """Compute one gradient that nobody gets: what a first step imports belongs to the start of the process."""
        self.engine.model.train()
        with contextlib.closing(self._batches()) as batches:
            self._compute(next(batches))

    def run(self) -> None:
        model = FlatModel(self.engine.module, self.link.ranges)
        self.engine.model.train()
        self.link.send(PushPullRequest(None, 0.0))
        steps = self.problem.rounds * self._steps()
        for step, batch in enumerate(self._batches()):
            reply = self.link.receive()
            self._count_round(reply)
            self._wait_for_end(reply)
            model.write(self.link.weights, buffers=False)
            began = time.monotonic()
            loss = self._compute(batch)
            model.read_gradient(self.link.gradient)
            examples = 0 if batch.weights is not None else len(batch)
            push = Push(examples=examples, total=batch.total, loss=loss, last=step + 1 == steps)
            self.link.send(PushPullRequest(push, self._finished(reply.time, began, step, examples)))
        self._count_round(self.link.released())
        self._report_traffic(self.problem.rounds)

    def _compute(self, batch: Batch) -> float:
        """The gradient of a batch; its loss."""
        self.engine.optimizer.zero_grad()
        loss = float(self.engine.backward(batch))
        if self.problem.clip_norm:
            self.engine.clip(self.problem.clip_norm)
        return loss

    def _batches(self) -> Generator[Batch]:
        """Of all rounds, each in the order of its own seed."""
        data = self.problem.training(self.number)
        schedule = self.problem.schedule
        for server_round in range(1, self.problem.rounds + 1):
            seed = self.problem.order_seed(self.number, server_round)
            if self.task.mode.together:
                rows = schedule.share(self.number, self.task.mode.global_batch(self.task.run), seed=seed)
            else:
                rows = schedule.own(self.number, seed=seed)
            with self.engine.seeded(seed):
                yield from self.engine.read(data, rows, seed=seed)

    def _steps(self) -> int:
        """In one round."""
        schedule = self.problem.schedule
        if not self.task.mode.together:
            return schedule.own_steps(self.number)[1]
        return schedule.global_steps(self.task.mode.global_batch(self.task.run))[1]

    def _finished(self, received: float, began: float, step: int, examples: int) -> float:
        """When the step is done on the simulated clock; where times are slept, after the rest of its time."""
        network, cost = self.task.run.network, self.task.run.cost
        if network is None or cost is None:
            return 0.0
        seconds = cost.seconds(examples) * network.slowdown(self.number, step)
        if not self.task.mode.slept:
            return received + seconds
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        return 0.0

    def _count_round(self, reply: PushPullReply) -> None:
        if reply.round > self._round:
            self._report_traffic(reply.round)

    def _wait_for_end(self, reply: PushPullReply) -> None:
        """Wait, in a worker that is to be killed after this round, until that happens."""
        while 0 < self.task.run.lost_after(self.number) <= reply.round:
            signal.pause()

    def _report_traffic(self, server_round: int) -> None:
        self._round = server_round
        used = TcpBytes.now()
        self.report(
            BytesUntil(
                round=server_round,
                sent=used.sent,
                received=used.received,
                all_sent=used.wire_sent,
                all_received=used.wire_received,
            )
        )
