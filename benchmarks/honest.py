"""What an honest federation pays for the owners' checks: seconds and bytes of four sites on the digits.

    python benchmarks/honest.py --turns 3 --before CHECKOUT

runs in turns a federation with stock kits, the same with owners who take any first model, and one with the stock kits
of another checkout, which has its own `.venv`. With `--demo` it also runs `fedcore demo` of both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, parser, quiet_environment, run, say, sized, wait_connected
from fedcore.comparison.local_federation import FEDCORE, free_port
from fedcore.errors import EnvironmentFailure
from fedcore.system.workers.child_processes import ChildProcesses

HERE: Final = Path(__file__).resolve().parents[1]
CLIENTS: Final = 4
START_SECONDS: Final = 300.0
STOCK, ANY, BEFORE = "stock kits", "owners who take any first model", "stock kits, before"
KB: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A kind of federation: of which checkout, started how, and whether its owners trace no model."""

    name: str
    checkout: Path
    fedcore: tuple[str, ...]
    any_model: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """By one run: seconds to its first sum, seconds of a later round, and a client's bytes in one."""

    first_sum: float
    later_round: float
    rounds: int
    up: float
    down: float


def main() -> int:
    """The command line."""
    arguments = parser("What an honest federation pays for the owners' checks.")
    arguments.add_argument("--turns", type=int, default=3, help="how often each is run")
    arguments.add_argument("--before", type=Path, metavar="CHECKOUT", help="an earlier checkout, with its own .venv")
    arguments.add_argument("--demo", action="store_true", help="run fedcore demo, too")
    return run(measure, arguments.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Run all arms in turns."""
    arms = [
        Arm(name=STOCK, checkout=HERE, fedcore=FEDCORE),
        Arm(name=ANY, checkout=HERE, fedcore=FEDCORE, any_model=True),
    ]
    if arguments.before is not None:
        before = arguments.before.absolute()
        arms.append(Arm(name=BEFORE, checkout=before, fedcore=(str(before / ".venv" / "bin" / "fedcore"),)))
    rounds = sized(arguments, smallest=2, quick=3, whole=10)
    paid: dict[str, list[Paid]] = {arm.name: [] for arm in arms}
    for turn in range(sized(arguments, smallest=1, quick=1, whole=arguments.turns)):
        for arm in arms if turn % 2 == 0 else reversed(arms):
            say(f"turn {turn + 1}: {arm.name}")
            paid[arm.name].append(run_once(arm, rounds))
    demos = [_demo(arm) for arm in arms if not arm.any_model] if arguments.demo else []
    return Report(
        benchmark="honest",
        figures=tuple(_figures(paid)),
        tables=(_table(paid, rounds), *([_demo_table(demos)] if demos else [])),
        notes=(
            "medians; the first sum is counted from the run's first event on, and has the imports of the apps in it",
            "an arm's clients and server share the machine's cores, and so do four derivations of the first model",
        ),
    )


def run_once(arm: Arm, rounds: int) -> Paid:
    """One federation, and one run of the digits."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _command([*arm.fedcore, "provision", "fed", "--clients", str(CLIENTS), "--port", str(free_port())], folder, arm)
        if arm.any_model:
            for policy in folder.glob("fed/clients/*/policy.toml"):
                policy.write_text(policy.read_text().replace('first-models = ["app"]', 'first-models = ["any"]'))
        app = arm.checkout / "examples" / "digits"
        with ChildProcesses(folder / "logs", {**quiet_environment(), "PYTHONPATH": str(arm.checkout)}) as group:
            group.start("server", [*arm.fedcore, "server", "--federation", folder / "fed"])
            kits = sorted(folder.glob("fed/clients/*"))
            for kit in kits:
                group.start(kit.name, [*arm.fedcore, "client", "--kit", kit, "--app", app])
            wait_connected(group, [kit.name for kit in kits], START_SECONDS)
            words = ["run", app, "--operator", folder / "fed" / "operator", "--out", folder / "model.safetensors"]
            printed = _command(
                [*arm.fedcore, *map(str, words), "--run-config", f"num-server-rounds={rounds}", "--json"], folder, arm
            )
        return _paid([json.loads(line) for line in printed.splitlines()])


def _paid(lines: Sequence[Mapping[str, Any]]) -> Paid:
    done = [line for line in lines if line.get("event", {}).get("kind") == "exchange-done"]
    by_round: dict[int, list[Mapping[str, Any]]] = {}
    for line in done:
        by_round.setdefault(line["event"]["server_round"], []).append(line["event"])
    later = [events for number, events in by_round.items() if number > 1]

    def each(key: str) -> float:
        return statistics.median(sum(sum(event[key].values()) for event in events) / CLIENTS for events in later)

    return Paid(
        first_sum=done[0]["seconds"],
        later_round=statistics.median(sum(event["seconds"] for event in events) for events in later),
        rounds=len(by_round),
        up=each("bytes_up"),
        down=each("bytes_down"),
    )


def _command(words: Sequence[str], folder: Path, arm: Arm) -> str:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), **quiet_environment(), "PYTHONPATH": str(arm.checkout)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentFailure(f"{arm.name}: {words[-1]} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def _demo(arm: Arm) -> tuple[str, float, Mapping[str, Any]]:
    """Its arm, its seconds, and its report."""
    say(f"demo: {arm.name}")
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        report = json.loads(_command([*arm.fedcore, "demo", "--json"], Path(folder), arm))
        return arm.name, time.monotonic() - began, report


def _figures(paid: Mapping[str, Sequence[Paid]]) -> Iterable[Figure]:
    peers = {ANY: "any_model", BEFORE: "before"}
    for name, short in peers.items():
        if name in paid:
            for key, aim in (("first_sum", 2.0), ("later_round", 1.1), ("up", 1.02), ("down", 1.02)):
                value = _median(paid[STOCK], key) / _median(paid[name], key)
                yield Figure(name=f"{key}_over_{short}", value=value, aim=aim)


def _median(paid: Sequence[Paid], key: str) -> float:
    return float(statistics.median(getattr(one, key) for one in paid))


def _table(paid: Mapping[str, Sequence[Paid]], rounds: int) -> Table:
    header = ("federation", "rounds", "seconds to the first sum", "seconds of a later round",
              "kB up, a client and round", "kB down")  # fmt: skip
    rows = tuple(
        (
            name,
            str(int(_median(all_, "rounds"))),
            f"{_median(all_, 'first_sum'):.2f}",
            f"{_median(all_, 'later_round'):.2f}",
            f"{_median(all_, 'up') / KB:.1f}",
            f"{_median(all_, 'down') / KB:.1f}",
        )
        for name, all_ in paid.items()
    )
    return Table(
        title=f"One run of {rounds} rounds over {CLIENTS} clients, training and evaluation", header=header, rows=rows
    )


def _demo_table(demos: Sequence[tuple[str, float, Mapping[str, Any]]]) -> Table:
    rows = tuple((name, f"{seconds:.0f}", _accuracies(report)) for name, seconds, report in demos)
    return Table(title="fedcore demo", header=("kits", "seconds", "accuracies"), rows=rows)


def _accuracies(report: Mapping[str, Any]) -> str:
    """Of the last model of each mode, per cent."""
    return ", ".join(
        f"{mode['mode']} {100 * spread['mean']:.2f}"
        for mode in report["summary"]
        for name, spread in mode["metrics"].items()
        if "accuracy" in name
    )


if __name__ == "__main__":
    sys.exit(main())
