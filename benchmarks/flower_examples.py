"""Flower's own examples in secure mode: which run as they are, and why the others do not.

    python benchmarks/flower_examples.py CHECKOUT [EXAMPLE ...] --save FILE

CHECKOUT is one of Flower's repository; nothing of it is changed, and nothing is downloaded. The data sets are stand-ins
of the same shape (`flower_stand_ins`), so the examples need their own libraries, `datasets` and `flwr-datasets` among
them, but no network. Each example runs in a simulation of its own, two rounds in secure mode with ten clients if it
does not need another number. One that fails there runs in plain mode as well, which says whether it runs here at all.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, commit_of, parser, quiet_environment, run, say
from benchmarks.flower_stand_ins import install_stand_ins

RESULT: Final = "OUTCOME "
AIM: Final = 15
SECURED: Final = "runs secured"
REFUSED: Final = "refused by name"
ELSEWHERE: Final = "fails in plain mode too"
NO_END: Final = "no end within the time limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One of Flower's: how many clients, run config over its own."""

    name: str
    clients: int = 10
    config: Mapping[str, Any] = field(default_factory=dict)


EXAMPLES: Final = (
    Example(name="quickstart-huggingface", clients=100, config={"fraction-train": 0.1}),
    Example(name="federated-vae"),
    Example(name="flower-secure-aggregation", clients=5),
    Example(name="flower-simulation-step-by-step-pytorch/my-awesome-app"),
    Example(name="opacus"),
    Example(name="quickstart-catboost"),
    Example(name="quickstart-xgboost", clients=30, config={"params.nthread": 1}),
    Example(name="fl-dp-sa"),
    Example(name="quickstart-monai"),
    Example(name="advanced-pytorch", clients=20),
    Example(name="federated-analytics"),
    Example(name="quickstart-jax", clients=60, config={"batch-size": 4}),
    Example(name="xgboost-comprehensive", config={"params.nthread": 1}),
    Example(name="flowertune-vit"),
    Example(name="quickstart-pennylane", config={"local-epochs": 1}),
    Example(name="quickstart-pytorch"),
    Example(name="quickstart-pytorch-lightning"),
    Example(name="supernode-authentication"),
    Example(name="federated-kaplan-meier-fitter", clients=2),
    Example(name="vertical-fl", clients=3),
    Example(name="quickstart-fastai"),
    Example(name="custom-mods"),
    Example(name="quickstart-numpy"),
    Example(name="quickstart-sklearn"),
    Example(name="quickstart-pandas"),
    Example(name="quickstart-mlx"),
    Example(name="embedded-devices"),
    Example(name="fl-tabular", clients=5),
    Example(name="quickstart-tensorflow"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run: "ran", "refused", "failed" or "late", with what it said."""

    verdict: str
    reason: str = ""


def simulate_here(folder: Path, example: Example, mode: str) -> Outcome:
    """Run the example in this process."""
    from fedcore.errors import CohortBelowMinimum, ConfigurationError
    from fedcore.flower.app import FlowerApp
    from fedcore.run.settings import JobSettings
    from fedcore.simulation import Simulation
    from fedcore.system.assignments import override

    install_stand_ins(example.clients)
    app = FlowerApp.load(folder)
    config = {**example.config, **({"num-server-rounds": 2} if "num-server-rounds" in app.run_config else {})}
    settings = JobSettings.from_mapping({**app.settings.to_mapping(), "aggregation": mode})
    simulation = Simulation(
        app=app,
        clients=example.clients,
        run_config=override(app.run_config, config, "run-config"),
        settings=settings,
        clients_at_once=1,
    )
    try:
        simulation.run()
    except (ConfigurationError, CohortBelowMinimum) as error:
        return Outcome("refused", str(error))
    except Exception as error:  # an example may end with anything
        return Outcome("failed", f"{type(error).__name__}: {error}")
    return Outcome("ran")


def outcome_of(checkout: Path, example: Example, mode: str, seconds: float) -> Outcome:
    """Run the example in a process and a folder of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        app = Path(shutil.copytree(checkout / "examples" / example.name, Path(scratch) / "app"))
        command = [sys.executable, "-P", str(Path(__file__).resolve()), str(checkout), example.name, "--here", mode]
        environment = {
            **quiet_environment(),
            "HF_HUB_OFFLINE": "1",
            "WANDB_MODE": "disabled",
            "CUDA_VISIBLE_DEVICES": "",
        }
        try:
            done = subprocess.run(
                command, cwd=app, env=environment, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return Outcome("late", f"{seconds:g} seconds")
    found = re.findall(rf"^{RESULT}(.*)$", done.stdout, re.MULTILINE)
    if not found:
        return Outcome("failed", (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1])
    return Outcome(**json.loads(found[-1]))


def row_of(checkout: Path, example: Example, seconds: float) -> tuple[str, ...]:
    """Name, clients, what came out and why."""
    secure = outcome_of(checkout, example, "secure", seconds)
    words = {"ran": SECURED, "refused": REFUSED, "late": NO_END}.get(secure.verdict)
    reason = secure.reason
    if words is None:
        plain = outcome_of(checkout, example, "plain", seconds)
        words = {"ran": "fails in secure mode only", "late": NO_END}.get(plain.verdict, ELSEWHERE)
        reason = plain.reason if words == ELSEWHERE else secure.reason
    row = (example.name, str(example.clients), words, _cell(reason))
    say(" | ".join(row))
    return row


def measure(arguments: argparse.Namespace) -> Report:
    """Run all, or those that the arguments name."""
    chosen = [one for one in EXAMPLES if not arguments.example or one.name in arguments.example]
    with ThreadPoolExecutor(arguments.at_once) as threads:
        rows = list(threads.map(lambda one: row_of(arguments.checkout, one, arguments.seconds), chosen))
    rows.sort(key=lambda row: (row[2] != SECURED, row[2], row[0]))
    counts = {words: sum(row[2] == words for row in rows) for words in dict.fromkeys(row[2] for row in rows)}
    secured = counts.get(SECURED, 0)
    return Report(
        benchmark="flower_examples",
        figures=(Figure(name="run_in_secure_mode", value=secured, unit="examples", aim=AIM, at_least=True),),
        tables=(Table(title="Flower's examples", header=("example", "clients", "outcome", "why"), rows=tuple(rows)),),
        notes=(
            f"of {len(rows)} examples: " + ", ".join(f"{words} {count}" for words, count in counts.items()),
            f"examples of Flower at {_noted_commit(arguments.checkout)}, unchanged, on stand-ins for their data sets",
        ),
    )


def _noted_commit(checkout: Path) -> str:
    """What the checkout says it is of: a file COMMIT in it, or git."""
    noted = checkout / "COMMIT"
    if noted.is_file():
        return noted.read_text(encoding="utf-8").strip()
    return commit_of(checkout) or "an unknown commit"


def _cell(reason: str) -> str:
    """Its beginning, on one line."""
    return re.sub(r"\s+", " ", reason).replace("|", "/")[:200]


def main() -> int:
    """The command line."""
    options = parser(__doc__ or "")
    options.add_argument("checkout", type=Path, help="of github.com/adap/flower")
    options.add_argument("example", nargs="*", help="names of examples (default: all)")
    options.add_argument("--seconds", type=float, default=600.0, help="for each run (default: %(default)g)")
    options.add_argument("--at-once", type=int, default=1, help="examples (default: %(default)s)")
    options.add_argument("--here", choices=("plain", "secure"), help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.here:
        (example,) = (one for one in EXAMPLES if one.name == arguments.example[0])
        outcome = simulate_here(Path.cwd(), example, arguments.here)
        print(RESULT + json.dumps(asdict(outcome)), flush=True)
        return 0
    return run(measure, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
