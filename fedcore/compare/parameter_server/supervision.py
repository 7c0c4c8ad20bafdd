"""Starts the processes of a run, and keeps what they report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from fedcore.compare.parameter_server.serving import run_shard
from fedcore.compare.parameter_server.tasks import Task
from fedcore.compare.parameter_server.worker import run_worker
from fedcore.compare.results import Loss
from fedcore.compare.run import worker_name
from fedcore.compare.workers import ENDED, WorkerEvent, Workers
from fedcore.errors import EnvironmentFailure, RunFailed
from fedcore.events import ClientDropped, EventSink, ExchangeDone
from fedcore.system.peers import BLAME_SECONDS, tells_of_lost_peer

_GRACE: Final = 1.0
"""How long the last reports of the other processes are waited for then."""


@dataclass(slots=True)
class Training:
    """The processes of a run while they train.

    rounds: what shard 0 reported after each. traffic: worker -> round -> bytes up and down, counted when the worker saw
    that the round was over. finished: what shard 0 said at the end.
    """

    task: Task
    workers: Workers
    emit: EventSink
    rounds: list[Mapping[str, Any]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    traffic: list[dict[int, tuple[int, int]]] = field(init=False)
    finished: Mapping[str, Any] = field(default_factory=dict)
    _began: bool = False
    _ended: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _gone: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.traffic = [{0: (0, 0)} for _ in range(self.task.run.sites)]

    def run(self) -> None:
        """Until the last process has ended.

        Raises RunFailed where the app's code fails, where a shard or every worker is lost, or one before the training
        began: then nobody has begun, and the server does not know it yet.
        """
        for shard in range(self.task.shards):
            self.workers.start(f"shard-{shard}", run_shard, self.task, shard)
        for worker in range(self.task.run.sites):
            self.workers.start(worker_name(worker), run_worker, self.task, worker)
        for event in self.workers.events(silence=self.task.seconds):
            self._take(event)
            if event.kind == ENDED and event.data["exitcode"]:
                self._lose(event)
        if not self.finished["released"]:
            reasons = [f"{name}: {end['reason']}" for name, end in self._ended.items() if end["reason"]]
            raise RunFailed("; ".join(["all workers were lost", *reasons]))

    def _lose(self, event: WorkerEvent) -> None:
        """A process failed: shard 0 notices a worker that was killed, and goes on without it."""
        reason = f"{event.name}: {event.data['reason']}"
        if event.name.startswith("shard-"):
            self._give_up()
        if _lost_its_peer(event.data):
            return
        if not self._began:
            raise RunFailed(f"{reason}, before the training began")
        if event.data["exitcode"] > 0:
            raise RunFailed(reason)

    def bytes_at(self, server_round: int) -> list[tuple[int, int]]:
        """Bytes up and down of each worker up to the end of a round; a lost worker's last count stays."""
        return [
            counts[min((number for number in counts if number >= server_round), default=max(counts))]
            for counts in self.traffic
        ]

    def _take(self, event: WorkerEvent) -> None:
        data = event.data
        match event.kind:
            case "began":
                self._began = True
            case "round":
                self._end_round(data)
            case "lost":
                self._count_loss(data)
            case "traffic":
                self.traffic[int(data["worker"])][int(data["round"])] = (int(data["up"]), int(data["down"]))
            case "finished":
                self.finished = data
            case kind if kind == ENDED:
                self._gone.setdefault(event.name, time.monotonic())
                self._ended[event.name] = data

    def _end_round(self, data: Mapping[str, Any]) -> None:
        kill = self.task.run.kill
        if kill is not None and kill.round == data["round"]:
            self._gone[worker_name(kill.site)] = time.monotonic()
            self.workers.kill(worker_name(kill.site))
        self.emit(self._exchange(data))
        self.rounds.append(data)

    def _exchange(self, data: Mapping[str, Any]) -> ExchangeDone:
        """A round as an event; the bytes are those of the counts that are here already."""
        before = self.rounds[-1] if self.rounds else {"samples": 0, "seconds": 0.0}
        lost = {loss.worker for loss in self.losses}
        names = [worker_name(worker) for worker in range(self.task.run.sites)]
        known = dict(zip(names, self.bytes_at(data["round"]), strict=True))
        earlier = dict(zip(names, self.bytes_at(data["round"] - 1), strict=True))
        return ExchangeDone(
            exchange=data["round"],
            server_round=data["round"],
            message_type="train",
            aggregation="none",
            survivors=[name for name in names if name not in lost],
            examples=data["samples"] - before["samples"],
            metrics={"train_loss": data["loss"]},
            seconds=data["seconds"] - before["seconds"],
            bytes_up={name: known[name][0] - earlier[name][0] for name in names},
            bytes_down={name: known[name][1] - earlier[name][1] for name in names},
        )

    def _count_loss(self, data: Mapping[str, Any]) -> None:
        name, now = worker_name(int(data["worker"])), time.monotonic()
        consequence = (
            "the others went on; each later step is the mean over their examples"
            if self.task.together
            else "the others went on and waited for it no more"
        )
        seconds = now - self._gone.get(name, now)
        self.losses.append(Loss(worker=name, round=int(data["round"]), consequence=consequence, seconds=seconds))
        self.emit(ClientDropped(exchange=data["round"], client=name, stage="train", reason=data["reason"]))

    def _give_up(self) -> NoReturn:
        """A shard has failed, and with it whoever talked to it: say which was the first."""
        with contextlib.suppress(EnvironmentFailure):
            self._hear_of_the_first()
            for event in self.workers.events(silence=_GRACE):
                self._take(event)
        shards = self._failed_shards()
        name = min(shards, key=lambda name: (shards[name]["exitcode"] > 0, _lost_its_peer(shards[name])))
        if shards[name]["exitcode"] > 0:
            raise RunFailed(f"{name}: {shards[name]['reason']}")
        raise RunFailed(
            f"{name} was lost in round {len(self.rounds) + 1} ({shards[name]['reason']}); "
            "its part of the model is nowhere else"
        )

    def _hear_of_the_first(self) -> None:
        """Wait while all shards that are known to have failed are those that lost another one."""
        events = self.workers.events(silence=BLAME_SECONDS)
        while all(map(_lost_its_peer, self._failed_shards().values())):
            if (event := next(events, None)) is None:
                return
            self._take(event)

    def _failed_shards(self) -> dict[str, Mapping[str, Any]]:
        """How they ended, the first to be seen first."""
        return {name: end for name, end in self._ended.items() if name.startswith("shard-") and end["exitcode"]}


def _lost_its_peer(end: Mapping[str, Any]) -> bool:
    """Whether a process ended because another one had."""
    return tells_of_lost_peer(end["traceback"])
