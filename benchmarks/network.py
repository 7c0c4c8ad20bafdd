"""Whether the simulated clock of a comparison tells the truth: the same over a network that is as slow as it says.

Network namespaces on this machine, TCP of the kernel, and a relay that holds each packet as long as the links would
have. `python benchmarks/network.py`, as root.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import (
    EXAMPLES,
    Figure,
    Report,
    Table,
    parser,
    quiet_environment,
    run,
    say,
    sized,
    wait_connected,
)
from benchmarks.relay import DEVICE, Node, is_possible, nodes
from fedcore.comparison.federation import follow
from fedcore.comparison.local_federation import FEDCORE, run_command
from fedcore.comparison.measure.clock import TimedExchange, federated_seconds, ring_seconds
from fedcore.comparison.measure.traffic import TcpBytes
from fedcore.comparison.workers.schedule import Schedule
from fedcore.errors import EnvironmentFailure
from fedcore.federation import Policy, provision
from fedcore.monitoring.run_record import RunRecord
from fedcore.simulation.devices.network import Cost, Network
from fedcore.system.workers.child_processes import ChildProcesses
from fedcore.wire.events import ExchangeDone, ignore

CLIENTS = 3
PORT = 8443
CONNECT_SECONDS = 90.0
FREE = Cost(step=0.0, example=0.0)


def line(bandwidth: float, latency: float) -> Network:
    """A network whose server has a link like a site's. bandwidth: Mbit/s; latency: ms, one way."""
    name = f"{bandwidth:g} Mbit/s, {latency:g} ms"
    return Network(name=name, bandwidth=bandwidth * 1e6, latency=latency * 1e-3, server=bandwidth * 1e6)


# --- all-reduce -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """One all-reduce, the quickest of several. size: bytes of the vector; sent: bytes of one rank; in seconds."""

    network: Network
    ranks: int
    size: int
    sent: float
    measured: float

    @property
    def clock(self) -> float:
        """What the simulated clock says."""
        return ring_seconds(self.ranks, self.sent, self.network)


def measure_rings(network: Network, ranks: int, sizes: Sequence[int], *, repetitions: int) -> list[Ring]:
    """Gloo's all-reduce over that network, one rank a node."""
    say(f"all-reduce, {ranks} ranks, {network.name}")
    context = multiprocessing.get_context("fork")
    answers: SimpleQueue[tuple[int, float, float]] = context.SimpleQueue()
    with nodes(ranks, bandwidth=network.bandwidth, latency=network.latency) as made:
        workers = [
            context.Process(target=_reduce, args=(made, rank, sizes, repetitions, answers), daemon=True)
            for rank in range(ranks)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            if worker.exitcode:
                raise EnvironmentFailure(f"a rank ended with exit status {worker.exitcode}")
        found = [answers.get() for _ in sizes]
    return [Ring(network=network, ranks=ranks, size=size, sent=sent, measured=seconds) for size, seconds, sent in found]


def _reduce(made: Sequence[Node], rank: int, sizes: Sequence[int], repetitions: int, answers: Any) -> None:
    made[rank].enter()
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
    dist.init_process_group("gloo", init_method=f"tcp://{made[0].address}:{PORT}", rank=rank, world_size=len(made))
    for size in sizes:
        values = torch.zeros(size // 4)
        dist.all_reduce(values)
        dist.barrier()
        before, seconds = TcpBytes.now(), []
        for _ in range(repetitions):
            started = time.monotonic()
            dist.all_reduce(values)
            seconds.append(time.monotonic() - started)
        if rank == 0:
            answers.put((size, min(seconds), (TcpBytes.now() - before).sent / repetitions))
    dist.barrier()
    os._exit(0)  # a group's threads may abort in the interpreter's teardown


# --- federated ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Rounds over a slow network and the same ones over a fast one.

    measured, fast: seconds of one; clock: the difference, by the clock. wire: bytes of IP packets of all clients over
    those that the server counted.
    """

    network: Network
    aggregation: str
    measured: float
    fast: float
    clock: float
    wire: float


def measure_rounds(network: Network, aggregation: str, *, rounds: int) -> Rounds:
    """The quickest round of each: whatever else the machine does makes one longer. A round trains and evaluates.

    The first is left out, since clients then import what they need.
    """
    fast = replace(network, name="fast", bandwidth=1e9, server=1e9, latency=0.0)
    (record, wire), (other, _) = (_federated(each, aggregation, rounds) for each in (network, fast))
    records = (record, other)
    seconds = [min(round_seconds(record)) for record in records]
    clocks = [_clock(each, record) for each, record in zip((network, fast), records, strict=True)]
    return Rounds(
        network=network,
        aggregation=aggregation,
        measured=seconds[0],
        fast=seconds[1],
        clock=clocks[0] - clocks[1],
        wire=wire / sum(_counted(exchange) for exchange in record.exchanges),
    )


def _federated(network: Network, aggregation: str, rounds: int) -> tuple[RunRecord, int]:
    """The digits app, the server on one node and each client on its own; with the bytes on the clients' wires."""
    say(f"federated, {aggregation}, {network.name}")
    app = EXAMPLES / "digits"
    with (
        tempfile.TemporaryDirectory(prefix="fedcore-network-") as name,
        nodes(CLIENTS + 1, bandwidth=network.bandwidth, latency=network.latency) as (server, *sites),
        ChildProcesses(Path(name) / "logs", quiet_environment()) as group,
    ):
        folder = Path(name) / "federation"
        made = provision(
            folder,
            name="network",
            clients=CLIENTS,
            now=datetime.now(UTC),
            hosts=[server.address],
            port=PORT,
            policy=Policy.own(CLIENTS, allow_plain=aggregation == "plain"),
        )
        group.start("server", [*server.command(), *FEDCORE, "server", "--federation", folder])
        for node, kit in zip(sites, made.clients, strict=True):
            group.start(kit.name, [*node.command(), *FEDCORE, "client", "--kit", kit, "--app", app])
        wait_connected(group, [kit.name for kit in made.clients], CONNECT_SECONDS)
        command = run_command(
            app,
            made.operator,
            out=Path(name) / "model.safetensors",
            run_config={"num-server-rounds": rounds, "local-epochs": 1},
            settings={"min-clients": CLIENTS, "aggregation": aggregation},
        )
        before = sum(node.wire_bytes() for node in sites)
        record = follow(group, group.start("run", [*server.command(), *command], piped=True), ignore)
        wire = sum(node.wire_bytes() for node in sites) - before
    if record.status != "finished":
        raise EnvironmentFailure(f"the run ended as {record.status}: {record.reason}")
    return record, wire


def _counted(exchange: ExchangeDone) -> int:
    return sum(exchange.bytes_up.values()) + sum(exchange.bytes_down.values())


def round_seconds(record: RunRecord) -> list[float]:
    """From the end of one evaluation to the end of the next."""
    ends = [end for exchange, end in zip(record.exchanges, record.ends, strict=True) if not exchange.trains]
    return [after - before for before, after in pairwise(ends)]


def _clock(network: Network, record: RunRecord) -> float:
    """One round, its computation left out: a training exchange that need not fetch the model, and an evaluation."""
    training, evaluation = record.exchanges[-2:]
    once = 2 * network.latency
    secure = record.aggregation == "secure"
    nothing = Schedule(counts=(1,) * CLIENTS, batch_size=1, epochs=1)
    seconds = federated_seconds(nothing, [_exchanged(training), _exchanged(evaluation)], FREE, network, secure=secure)
    return seconds[-1] - once


def _exchanged(exchange: ExchangeDone) -> TimedExchange:
    up, down = (dict(enumerate(values.values())) for values in (exchange.bytes_up, exchange.bytes_down))
    return TimedExchange(server_round=1, up=up, down=down)


# --- the report -----------------------------------------------------------------------------------------------------


def measure(arguments: argparse.Namespace) -> Report:
    """Everything that the machine's time allows."""
    if not is_possible():
        raise EnvironmentFailure("this benchmark makes network namespaces and TUN devices: Linux, as root")
    sizes = sized(arguments, smallest=(4_000,), quick=(4_000, 400_000), whole=(4_000, 40_000, 400_000, 4_000_000))
    lines = [(line(100, 5), 2), (line(20, 50), 4), (line(100, 50), 2), (line(20, 5), 4)]
    lines = lines[: sized(arguments, smallest=1, quick=2, whole=4)]
    rings = [ring for network, ranks in lines for ring in measure_rings(network, ranks, sizes, repetitions=5)]
    # A federation in namespaces has real processes, which take a minute to start.
    kinds: tuple[str, ...] = sized(arguments, smallest=(), quick=("secure",), whole=("secure", "plain"))
    rounds = [measure_rounds(line(100, 50), kind, rounds=4 if arguments.quick else 10) for kind in kinds]
    return Report(
        benchmark="network",
        figures=(
            Figure(name="allreduce_over_clock", value=max(ring.measured / ring.clock for ring in rings), aim=1.5),
            Figure(
                name="federated_over_clock",
                value=max(((each.measured - each.fast) / each.clock for each in rounds), default=0.0),
                aim=1.5,
            ),
            Figure(name="least_over_clock", value=_least(rings, rounds), aim=0.8, at_least=True),
        ),
        tables=(_ring_table(rings), _round_table(rounds)),
        notes=(
            "measured / clock: how much longer the real thing takes than the simulated clock says",
            "above 1 is what the clock leaves out: TCP begins slowly, again after every pause; and the packets pass "
            "through one Python process, which a busy machine holds up by milliseconds",
            f"federated: examples/digits, {CLIENTS} clients; a round trains and evaluates; the round over a fast "
            "network is taken off, so that computation does not count",
            "wire / counted: bytes of IP packets during the run, heartbeats and polls between exchanges among them, "
            "over the bytes of HTTP that the server counts for the exchanges",
        ),
    )


def _least(rings: Sequence[Ring], rounds: Sequence[Rounds]) -> float:
    ratios = [ring.measured / ring.clock for ring in rings]
    return min([*ratios, *((each.measured - each.fast) / each.clock for each in rounds)])


def _ring_table(rings: Sequence[Ring]) -> Table:
    return Table(
        title="one all-reduce (gloo)",
        header=("network", "ranks", "bytes", "measured s", "clock s", "measured / clock"),
        rows=tuple(
            (
                ring.network.name,
                str(ring.ranks),
                f"{ring.size:,}",
                f"{ring.measured:.3f}",
                f"{ring.clock:.3f}",
                f"{ring.measured / ring.clock:.2f}",
            )
            for ring in rings
        ),
    )


def _round_table(rounds: Sequence[Rounds]) -> Table:
    return Table(
        title="one federated round",
        header=(
            "network",
            "aggregation",
            "round s",
            "fast s",
            "difference s",
            "clock s",
            "difference / clock",
            "wire / counted",
        ),
        rows=tuple(
            (
                each.network.name,
                each.aggregation,
                f"{each.measured:.3f}",
                f"{each.fast:.3f}",
                f"{each.measured - each.fast:.3f}",
                f"{each.clock:.3f}",
                f"{(each.measured - each.fast) / each.clock:.2f}",
                f"{each.wire:.2f}",
            )
            for each in rounds
        ),
    )


if __name__ == "__main__":
    sys.exit(run(measure, parser(__doc__ or "").parse_args()))
