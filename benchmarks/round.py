"""What a round costs without training: secure against plain, over TLS, with a real server and real client processes.

    python benchmarks/round.py [--quick] [--json] [--clients 8] [--sizes 1e6 1e7] [--large]

Each client hands the model back with a constant added. Secure and plain runs take turns in one federation, so that
both meet the same machine in the same state. A round lasts from the end of one training exchange to the end of the
next, with everything between: the strategy's averaging, writing, sending, masking, folding, unmasking. The first
round of a run is left out; its fields have 32 bits, and the clients' workers start in it.

round_over_floor: a secure round over what a program without a protocol takes to move the same bytes over TLS, to hash,
encode, mask, fold and decode them (benchmarks/round_floor.py), between the runs, on the same cores. The same ratio is
given in processor seconds, which other work on the machine changes little.

--large: also a secure round of three clients at d = 1e8: seconds, memory of server and clients, temporary disk.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import APPS, Figure, Report, Table, parser, run, say, sized
from benchmarks.live import LiveFederation, live_federation
from benchmarks.processors import ROLES, between, spent
from benchmarks.resident import ChildrenPeak, peak_resident_bytes, reset_peak, resident_bytes
from benchmarks.round_floor import Floor, measure_floor
from benchmarks.round_large import LargeRound, measure_large
from fedcore.monitoring.run_record import RunRecord
from fedcore.wire.events import ExchangeDone, RunEvent

CLIENTS = 8
SECURE, PLAIN = "secure", "plain"
FLOAT32_BYTES = 4
MIB = float(1 << 20)

SECONDS_AIM = 1.15
# Half, and one part in a hundred for the other messages of a round.
UPLOAD_AIM = 0.51
MEMORY_AIM = 3.0
FLOOR_AIM, LARGE_FLOOR_AIM = 3.0, 2.0
LARGE_PARAMETERS = 10**7
"""From here on the bytes of a model cost more than the messages of a round."""
# Below this the buffers of the connections, some tens of MiB whatever the model, hide what grows with it.
MEMORY_PARAMETERS = 10**7


@dataclass(slots=True, kw_only=True)
class Measured:
    """The rounds after the first of all runs of one kind.

    peak, app_peak: bytes, of the server's process and of the ServerApp's, the highest of all runs. processors: of each
    run, the processor seconds of one round by the kind of process.
    """

    parameters: int
    aggregation: str
    rounds: list[ExchangeDone] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    peak: int = 0
    app_peak: int = 0
    processors: list[dict[str, float]] = field(default_factory=list)

    def add(self, record: RunRecord, *, peak: int, app_peak: int, processors: dict[str, float]) -> None:
        """Take one run."""
        self.processors.append(processors)
        training = [
            (exchange, end) for exchange, end in zip(record.exchanges, record.ends, strict=True) if exchange.trains
        ]
        self.rounds += [exchange for exchange, _ in training[1:]]
        self.seconds += [after - before for (_, before), (_, after) in pairwise(training)]
        self.peak, self.app_peak = max(self.peak, peak), max(self.app_peak, app_peak)

    @property
    def model_bytes(self) -> int:
        """Size of the model in float32."""
        return self.parameters * FLOAT32_BYTES

    def processor(self, role: str) -> float:
        """Processor seconds of a round in one kind of process."""
        return median(one[role] for one in self.processors)

    def processor_seconds(self) -> float:
        """Processor seconds of a round, all processes together."""
        return median(sum(one.values()) for one in self.processors)

    def upload(self) -> float:
        """Bytes that one client sends in a round."""
        return median(fmean(exchange.bytes_up.values()) for exchange in self.rounds)

    def download(self) -> float:
        """Bytes that one client receives in a round."""
        return median(fmean(exchange.bytes_down.values()) for exchange in self.rounds)

    def stages(self) -> dict[str, float]:
        """Median seconds of what a round consists of.

        In a stage the server waits for the clients' answers to it; "input" holds the local work, encoding, masking,
        uploading and folding. "changing stages" is what the server does from one to the next, "between exchanges" the
        strategy's averaging.
        """
        names = self.rounds[0].stage_seconds
        stages = {name: median(exchange.stage_seconds[name] for exchange in self.rounds) for name in names}
        changing = (exchange.seconds - sum(exchange.stage_seconds.values()) for exchange in self.rounds)
        outside = (total - exchange.seconds for total, exchange in zip(self.seconds, self.rounds, strict=True))
        return {**stages, "changing stages": median(changing), "between exchanges": median(outside)}


def main() -> int:
    """The command line."""
    options = parser("What a round costs without training: secure against plain.")
    options.add_argument("--clients", type=int, default=CLIENTS, help=f"client processes (default {CLIENTS})")
    options.add_argument("--sizes", type=float, nargs="+", metavar="D", help="models (default 1e6 1e7, quick 1e6)")
    options.add_argument("--large", action="store_true", help="also d = 1e8 with three clients: some 6 GiB of memory")
    options.add_argument("--rounds", type=int, help="rounds of a run, the first of which is not measured")
    options.add_argument("--repeats", type=int, help="runs of each kind and size")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All runs, in one federation, and the floor between them."""
    sizes = tuple(map(int, arguments.sizes or sized(arguments, smallest=(1e3,), quick=(1e6,), whole=(1e6, 1e7))))
    repeats = arguments.repeats or sized(arguments, smallest=1, quick=1, whole=3)
    rounds = arguments.rounds or sized(arguments, smallest=2, quick=5, whole=6)
    clients = min(arguments.clients, 3) if arguments.smallest else arguments.clients
    say(f"starting a server and {clients} clients")
    with live_federation(APPS / "noop", clients=clients, allow_plain=True) as federation:
        idle = resident_bytes(federation.server_pid)
        measured = {
            (parameters, kind): Measured(parameters=parameters, aggregation=kind)
            for parameters in sizes
            for kind in (SECURE, PLAIN)
        }
        floors: list[Floor] = []
        for parameters in sizes:
            for repeat in range(repeats):
                # The order turns round, so that neither kind always follows the other.
                for kind in (SECURE, PLAIN) if repeat % 2 == 0 else (PLAIN, SECURE):
                    _run_once(federation, measured[parameters, kind], rounds)
                floors.append(_floor(federation, parameters, rounds - 1))
    large = measure_large() if arguments.large else None
    return report(measured, idle=idle, sizes=sizes, clients=clients, floors=floors, large=large)


def _run_once(federation: LiveFederation, measured: Measured, rounds: int) -> None:
    reset_peak(federation.server_pid)
    at: list[dict[tuple[str, int], float]] = []

    def hear(event: RunEvent) -> None:
        if isinstance(event, ExchangeDone):
            at.append(spent(federation.server_pid))

    with ChildrenPeak(federation.server_pid) as children:
        record = federation.run(
            run_config={"parameters": measured.parameters, "num-server-rounds": rounds},
            settings={"aggregation": measured.aggregation},
            hear=hear,
        )
    measured.add(
        record,
        peak=peak_resident_bytes(federation.server_pid),
        app_peak=children.peak,
        processors=between(at[0], at[-1], rounds - 1),
    )
    latest = measured.seconds[-(rounds - 1) :]
    say(f"d = {measured.parameters:.0e}, {measured.aggregation}: {', '.join(f'{s:.2f}' for s in latest)} s a round")


def _floor(federation: LiveFederation, parameters: int, turns: int) -> Floor:
    folder = federation.operator_folder.parent / "server"
    floor = measure_floor(folder, parameters, clients=federation.clients, turns=turns)
    say(f"d = {parameters:.0e}, floor: {', '.join(f'{s:.2f}' for s in floor.seconds)} s a round")
    return floor


def report(
    measured: Mapping[tuple[int, str], Measured],
    *,
    idle: int,
    sizes: Sequence[int],
    clients: int,
    floors: Sequence[Floor],
    large: LargeRound | None = None,
) -> Report:
    """Figures and tables. idle: resident bytes of the server with all clients connected, before the first run."""
    largest = measured[sizes[-1], SECURE]
    figures = [
        Figure(
            name=f"secure_over_plain_seconds_{_power(parameters)}",
            value=median(measured[parameters, SECURE].seconds) / median(measured[parameters, PLAIN].seconds),
            aim=SECONDS_AIM,
        )
        for parameters in sizes
    ]
    for parameters in sizes:
        secure, name = measured[parameters, SECURE], _power(parameters)
        seconds, processors = _floor_of(floors, parameters)
        aim = FLOOR_AIM if parameters < LARGE_PARAMETERS else LARGE_FLOOR_AIM
        over, busy = median(secure.seconds) / seconds, secure.processor_seconds() / processors
        figures.append(Figure(name=f"round_over_floor_{name}", value=over, aim=aim))
        figures.append(Figure(name=f"round_over_floor_processors_{name}", value=busy, aim=aim))
    figures.append(Figure(name="upload_over_float32", value=largest.upload() / largest.model_bytes, aim=UPLOAD_AIM))
    if largest.parameters >= MEMORY_PARAMETERS:
        above_idle = largest.peak - idle
        figures.append(Figure(name="server_peak_over_model", value=above_idle / largest.model_bytes, aim=MEMORY_AIM))
    return Report(
        benchmark="round",
        figures=tuple(figures),
        tables=(
            _overview(measured, idle),
            _processors(measured, floors),
            *(_stages(one) for one in measured.values()),
            *([large.table()] if large is not None else []),
        ),
        notes=(
            f"{clients} client processes, one server process, all on this machine, TLS on; medians over "
            f"{len(largest.seconds)} rounds of each kind, the first round of every run left out",
            f"server memory is the peak of the process that answers requests, above its {idle / MIB:.0f} MiB with all "
            "clients connected before the first run; the ServerApp's process is shown next to it, in full",
            f"the upload figure is that of d = {_power(sizes[-1])}; the memory figure is given from d = "
            f"{_power(MEMORY_PARAMETERS)} on, since the buffers of the connections take some tens of MiB in any case",
        ),
    )


def _overview(measured: Mapping[tuple[int, str], Measured], idle: int) -> Table:
    header = (
        "model", "aggregation", "s a round", "fastest", "slowest", "up MB", "down MB", "server MiB above idle",
        "over model", "ServerApp MiB",
    )  # fmt: skip
    rows = [
        (
            f"d = {_power(one.parameters)}",
            one.aggregation,
            f"{median(one.seconds):.2f}",
            f"{min(one.seconds):.2f}",
            f"{max(one.seconds):.2f}",
            f"{one.upload() / 1e6:.2f}",
            f"{one.download() / 1e6:.2f}",
            f"{(one.peak - idle) / MIB:.1f}",
            f"{(one.peak - idle) / one.model_bytes:.2f}",
            f"{one.app_peak / MIB:.0f}",
        )
        for one in measured.values()
    ]
    return Table(title="Rounds", header=header, rows=tuple(rows))


def _floor_of(floors: Sequence[Floor], parameters: int) -> tuple[float, float]:
    """Seconds and processor seconds of a turn."""
    here = [floor for floor in floors if floor.parameters == parameters]
    turns = [turn for floor in here for turn in zip(floor.server_cpu, floor.clients_cpu, strict=True)]
    return median(one for floor in here for one in floor.seconds), median(map(sum, turns))


def _processors(measured: Mapping[tuple[int, str], Measured], floors: Sequence[Floor]) -> Table:
    rows = [
        (
            f"d = {_power(one.parameters)}",
            one.aggregation,
            f"{median(one.seconds):.2f}",
            f"{one.processor_seconds():.2f}",
            *(f"{one.processor(role):.2f}" for role in ROLES),
        )
        for one in measured.values()
    ]
    for parameters in dict.fromkeys(floor.parameters for floor in floors):
        seconds, processors = _floor_of(floors, parameters)
        here = [floor for floor in floors if floor.parameters == parameters]
        server = median(one for floor in here for one in floor.server_cpu)
        members = median(one for floor in here for one in floor.clients_cpu)
        figures = (f"{seconds:.2f}", f"{processors:.2f}", f"{server:.2f}", "", f"{members:.2f}", "")
        rows.append((f"d = {_power(parameters)}", "floor", *figures))
    return Table(
        title="Processor seconds of a round",
        header=("model", "aggregation", "s a round", "processor s", *ROLES),
        rows=tuple(rows),
    )


def _stages(one: Measured) -> Table:
    rows = tuple((name, f"{seconds:.3f}") for name, seconds in one.stages().items())
    return Table(
        title=f"Where a round's time goes: d = {_power(one.parameters)}, {one.aggregation}",
        header=("stage", "median s"),
        rows=rows,
    )


def _power(number: int) -> str:
    """1e6 for a million, as the names of figures have it."""
    digits = len(str(number)) - 1
    return f"1e{digits}" if number == 10**digits else str(number)


if __name__ == "__main__":
    sys.exit(main())
