"""The same training on a LAN and on a WAN: which mode reaches a target accuracy first, by the simulated clock.

Every mode is trained once, by real processes. Only the clock differs between the networks, so that the second network
is a matter of arithmetic; but what an asynchronous parameter server computes depends on who comes first, so that its
modes are trained once for each.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import matplotlib.figure

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import EXAMPLES, Figure, Report, Table, parser, run, say
from fedcore.comparison.execution import RunStart, execute_comparison
from fedcore.comparison.measure.clock import (
    TimedExchange,
    allreduce_seconds,
    averaging_seconds,
    centralized_seconds,
    federated_seconds,
    local_seconds,
)
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.plan import CompareJob, plan
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.drawing import MUTED, Drawing, Hover, label_lines, looks, percent_axis
from fedcore.comparison.report.summary import percent
from fedcore.comparison.results import CurvePoint, RunResult, number_of
from fedcore.comparison.run import PlannedRun
from fedcore.comparison.workers.schedule import Schedule
from fedcore.errors import RunFailed
from fedcore.flower.app import FlowerApp
from fedcore.simulation.devices.network import Cost, Network
from fedcore.wire.base import Scalar
from fedcore.wire.events import EventSink, ignore

SITES = 4
NETWORKS = ("lan", "wan")
TRAINED_ONCE = "centralized,local,allreduce,local-sgd,diloco,federated,federated-plain"
SMALLEST = ("allreduce,federated", "ps-sync")
TRAINED_TWICE = "ps-sync,ps-async[momentum=0.5],ps-ssp[momentum=0.5]"
"""Asynchrony acts like momentum; with the 0.9 of the apps on top of it they do not learn."""
NO_RIVALS = ("centralized", "local")
"""The first had its data brought together before; the second ends with a model for each site."""
TARGETS = (0.9, 0.98)
"""Shares of the best last accuracy of the rivals."""

Curves = Mapping[str, tuple[CurvePoint, ...]]
"""Label of a mode -> its curve on one network."""


def _accuracy(point: CurvePoint) -> float:
    """0 if it was not measured."""
    return number_of(point.metrics, "accuracy") or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """All modes on both networks. curves: by network. again: of the first network, computed as for the second."""

    app: str
    rounds: int
    cost: Cost
    curves: Mapping[str, Curves]
    again: Curves

    @property
    def rivals(self) -> list[str]:
        """The modes that compete."""
        return [label for label in self.curves[NETWORKS[0]] if label not in NO_RIVALS]

    @property
    def targets(self) -> tuple[float, ...]:
        """Accuracies that the better ones reach, rounded down to a thousandth."""
        best = max(_accuracy(curves[label][-1]) for curves in self.curves.values() for label in self.rivals)
        return tuple(math.floor(share * best * 1000) / 1000 for share in TARGETS)

    def reached(self, network: str, label: str, target: float) -> float | None:
        """Simulated seconds of the first evaluation at the target or above; None if there is none."""
        return next(
            (point.simulated_seconds for point in self.curves[network][label] if _accuracy(point) >= target),
            None,
        )

    def winner(self, network: str, target: float) -> str:
        """The rival that is first at the target."""
        times = {label: self.reached(network, label, target) for label in self.rivals}
        return min(times, key=lambda label: math.inf if times[label] is None else times[label] or 0.0)


def study(
    app: Path, config: Mapping[str, Scalar], folder: Path, data_dir: Path | None, *, modes: tuple[str, str]
) -> Study:
    """Train everything. modes: those that are trained once, and those that are for each network."""
    lan, wan = (_network(name) for name in NETWORKS)
    job = CompareJob(
        app=FlowerApp.load(app),
        modes=parse_modes(",".join(modes)),
        sites=SITES,
        out=folder / NETWORKS[0],
        network=lan,
        run_config=config,
        data_dir=data_dir,
    )
    first = _carried_out(job)
    assert first.cost is not None
    known = replace(wan, step=first.cost.step, example=first.cost.example)
    second = _carried_out(replace(job, modes=parse_modes(modes[1]), out=folder / NETWORKS[1], network=known))
    counts = [site.training for site in first.split]
    once = {run.label: run for run in plan(job) if not run.mode.name.startswith("ps-")}
    results = {result.mode: result for result in first.runs}
    retimed = {
        network.name: {
            label: retime(run, results[label], Schedule.of(run.config, counts), first.cost, network)
            for label, run in once.items()
        }
        for network in (lan, wan)
    }
    return Study(
        app=first.app,
        rounds=int(first.run_config["num-server-rounds"]),
        cost=first.cost,
        curves={
            lan.name: {result.mode: result.curve for result in first.runs},
            wan.name: {**retimed[wan.name], **{result.mode: result.curve for result in second.runs}},
        },
        again=retimed[lan.name],
    )


def retime(
    run: PlannedRun, result: RunResult, schedule: Schedule, cost: Cost, network: Network
) -> tuple[CurvePoint, ...]:
    """The curve of a run on another network, from the bytes that its workers moved, on average over the workers."""
    start, *points = result.curve
    rounds = len(points)
    up = _each_round([point.bytes_up for point in points])
    size = run.mode.global_batch(run) if "global-batch" in run.options else 0
    _, steps = schedule.global_steps(size)
    match run.mode.name:
        case "centralized":
            seconds = centralized_seconds(schedule, size, rounds, cost)
        case "local":
            seconds = local_seconds(schedule, rounds, cost, network)
        case "allreduce":
            seconds = allreduce_seconds(schedule, size, rounds, cost, network, bytes_per_step=up / steps)
        case "local-sgd" | "diloco":
            h = int(run.options["h"])
            sent = up / math.ceil(steps / h)
            seconds = averaging_seconds(schedule, size, rounds, cost, network, h=h, bytes_per_average=sent)
        case _:
            sites = range(run.sites)
            exchanges = [
                TimedExchange(
                    server_round=point.round,
                    up=dict.fromkeys(sites, point.bytes_up - before.bytes_up),
                    down=dict.fromkeys(sites, point.bytes_down - before.bytes_down),
                )
                for before, point in pairwise(result.curve)
            ]
            secure = result.aggregation == "secure"
            seconds = federated_seconds(schedule, exchanges, cost, network, secure=secure)
    timed = (replace(point, simulated_seconds=at) for point, at in zip(points, seconds, strict=True))
    return (replace(start, simulated_seconds=0.0), *timed)


def _each_round(totals: Sequence[float]) -> float:
    """Of one round; the first one's is left out if there are others, since it may hold the first model."""
    return (totals[-1] - totals[0]) / (len(totals) - 1) if len(totals) > 1 else totals[0]


def _network(name: str) -> Network:
    network = Network.parse(name)
    assert network is not None
    return network


def _carried_out(job: CompareJob) -> Comparison:
    @contextmanager
    def watch(start: RunStart) -> Iterator[EventSink]:
        say(f"{job.out.name}: run {start.number} of {start.total}: {start.run.label}")
        yield ignore

    comparison = execute_comparison(job, watch)
    for result in comparison.runs:
        if result.status == "failed":
            raise RunFailed(f"{result.mode}: {result.reason}")
    return comparison


# --- the report -----------------------------------------------------------------------------------------------------


def draw(found: Study, path: Path) -> None:
    """Accuracy against simulated seconds, the LAN above the WAN, on the same logarithmic axis."""
    modes = looks(list(found.curves[NETWORKS[0]]))

    def panels(figure: matplotlib.figure.Figure) -> tuple[Hover, ...]:
        figure.subplots_adjust(left=0.18, right=0.64, top=0.95, bottom=0.09, hspace=0.22)
        rows = figure.subplots(len(NETWORKS), 1, sharex=True, sharey=True)
        for axes, network in zip(rows, NETWORKS, strict=True):
            curves = found.curves[network]
            for label, curve in curves.items():
                points = [(point.simulated_seconds, _accuracy(point)) for point in curve if point.simulated_seconds]
                axes.plot(*zip(*points, strict=True), **modes[label].line)
            for target in found.targets:
                axes.axhline(target, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
            axes.set_xscale("log")
            axes.set_ylabel(f"accuracy, {network.upper()}")
            percent_axis(axes)
        for axes, network in zip(rows, NETWORKS, strict=True):
            ends = {label: _accuracy(curve[-1]) for label, curve in found.curves[network].items()}
            label_lines(figure, axes, ends, modes, percent)
        rows[-1].set_xlabel("simulated seconds")
        return ()

    Drawing(name="lan_wan", section="", title="LAN and WAN", caption="", height=6.5, draw=panels).file(path)


def report(found: Study, plot: Path | None) -> Report:
    """The table, the winners, and whether the arithmetic gives again what the runs' own clocks said."""
    errors = [
        (ours.simulated_seconds or 0.0) / then
        for label, curve in found.again.items()
        for ours, point in zip(curve, found.curves[NETWORKS[0]][label], strict=True)
        if (then := point.simulated_seconds)
    ]
    notes = [
        f"{found.app}, {SITES} sites, {found.rounds} rounds; to the targets, which are "
        f"{' and '.join(f'{share:.0%}' for share in TARGETS)} of the best last accuracy; the first in bold",
        *(_sentence(found, network) for network in NETWORKS),
        f"a step computes for {found.cost.step * 1e3:.3f} ms and {found.cost.example * 1e6:.1f} us an example, "
        "as measured",
        f"{' and '.join(NO_RIVALS)} do not compete: the first had its data brought together before, the second ends "
        "with a model for each site",
        f"{TRAINED_TWICE} were trained for each network, the others once: only their clock differs",
    ]
    notes += [f"![accuracy against simulated seconds]({plot.name})"] if plot is not None else []
    return Report(
        benchmark="lan_wan",
        figures=(
            Figure(name="retimed_over_clock", value=max(errors), aim=1.02),
            Figure(name="retimed_over_clock_least", value=min(errors), aim=0.98, at_least=True),
        ),
        tables=(_table(found),),
        notes=tuple(notes),
    )


def _sentence(found: Study, network: str) -> str:
    firsts = []
    for target in found.targets:
        winner = found.winner(network, target)
        firsts.append(f"{winner} is first at {target:.1%}, after {found.reached(network, winner, target) or 0.0:.3g} s")
    return f"{network.upper()}: {'; '.join(firsts)}"


def _table(found: Study) -> Table:
    goals = [(network, target) for target in found.targets for network in NETWORKS]
    winners = [found.winner(network, target) for network, target in goals]
    rows = []
    for label, curve in found.curves[NETWORKS[0]].items():
        cells = [
            _cell(found.reached(network, label, target), label == first)
            for (network, target), first in zip(goals, winners, strict=True)
        ]
        totals = [f"{found.curves[name][label][-1].simulated_seconds or 0.0:.3g}" for name in NETWORKS]
        last = [f"{_accuracy(found.curves[name][label][-1]):.4f}" for name in NETWORKS]
        rows.append((label, *cells, *totals, " / ".join(dict.fromkeys(last)), f"{curve[-1].bytes_up / 1e6:.2f}"))
    columns = [f"{network.upper()} to {target:.1%}" for network, target in goals]
    whole = [f"{network.upper()} in all" for network in NETWORKS]
    header = ("mode", *columns, *whole, "last accuracy", "MB up a worker")
    return Table(title="simulated seconds", header=header, rows=tuple(rows))


def _cell(seconds: float | None, first: bool) -> str:
    text = "-" if seconds is None else f"{seconds:.3g}"
    return f"**{text}**" if first else text


def measure(arguments: argparse.Namespace) -> Report:
    """Fashion-MNIST; the digits of scikit-learn with --quick."""
    name = "digits" if arguments.quick or arguments.data_dir is None else "fashion_mnist"
    config: dict[str, Scalar] = {
        "num-server-rounds": arguments.rounds or (1 if arguments.smallest else 5 if name == "digits" else 4)
    }
    if name == "digits":
        config["local-epochs"] = 1
    modes = SMALLEST if arguments.smallest else (TRAINED_ONCE, TRAINED_TWICE)
    with tempfile.TemporaryDirectory(prefix="fedcore-lan-wan-") as temporary:
        found = study(EXAMPLES / name, config, arguments.folder or Path(temporary), arguments.data_dir, modes=modes)
    plot = arguments.save.with_suffix(".png") if arguments.save else None
    if plot is not None:
        plot.parent.mkdir(parents=True, exist_ok=True)
        draw(found, plot)
    return report(found, plot)


def main() -> int:
    """The command line."""
    options = parser(__doc__ or "")
    options.add_argument("--data-dir", type=Path, help="folder of the data sets; without it the digits are taken")
    options.add_argument("--folder", type=Path, help="keeps the runs; the same command goes on where it stopped")
    options.add_argument("--rounds", type=int, default=0)
    return run(measure, options.parse_args())


if __name__ == "__main__":
    sys.exit(main())
