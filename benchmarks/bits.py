"""What runs give, bit by bit: written down, and compared with what is written down.

    python benchmarks/bits.py --write benchmarks/results/bits.json
    python benchmarks/bits.py --check benchmarks/results/bits.json

A rewrite of the engine shows with it that no result has changed: `fedcore demo`; a secure, a grouped and a
buffered simulation; a real run whose server is killed with SIGKILL between two rounds and started again; the files of
test vectors. Of each: SHA-256 of the models' tensors, and every metric of every round. Only commands are called, so
that it does not matter where modules lie. The codec's rounding and the draws of groups are fixed (`bits_draws`); keys
and masks are not, since they cancel exactly.

Floats come out alike only on the same processor with the same libraries. Exit status of --check: 0 if all is alike,
1 where something differs, which is named, 3 where the machine is another one and nothing can be said.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from safetensors.numpy import load_file

from benchmarks.common import (
    APPS,
    EXAMPLES,
    Figure,
    Report,
    Table,
    machine_description,
    parser,
    quiet_environment,
    run,
    say,
    sized,
)
from fedcore import FedcoreError

ROOT: Final = Path(__file__).resolve().parents[1]
FEDCORE: Final = (sys.executable, "-m", "fedcore")
ENVIRONMENT: Final = {**quiet_environment(), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "benchmarks/bits_draws")}
PATIENCE: Final = 300.0
CLIENTS: Final = 3
DIFFERENT, INCOMPARABLE = 1, 3

Bits = dict[str, Any]
"""Name -> a SHA-256, or the values of a metric, hex, by round."""


def main() -> int:
    """The command line."""
    options = parser("What runs give, bit by bit.")
    files = options.add_mutually_exclusive_group()
    files.add_argument("--write", type=Path, metavar="FILE", help="write it down")
    files.add_argument("--check", type=Path, metavar="FILE", help="compare with what is written down")
    arguments = options.parse_args()
    if arguments.quick and (arguments.write or arguments.check):
        options.error("what is written down is of whole runs: leave --quick and --smallest out")
    here = machine(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    before = json.loads(arguments.check.read_text(encoding="utf-8")) if arguments.check else None
    if before is not None and before["machine"] != here:
        print(f"bits cannot be compared: they are of {before['machine']}, and this is {here}", file=sys.stderr)
        return INCOMPARABLE
    differing: list[str] = []

    def measure(arguments: argparse.Namespace) -> Report:
        bits = found(arguments)
        if arguments.write:
            kept = {"commit": commit(), "machine": here, "bits": bits}
            arguments.write.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        differing.extend(differences(before["bits"], bits) if before is not None else ())
        return report(bits, differing)

    status = run(measure, arguments)
    for name in differing:
        say(f"differs: {name}")
    return status or (DIFFERENT if differing else 0)


def differences(before: Bits, now: Bits) -> list[str]:
    """The names of what is another, or there only once."""
    return [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]


def report(bits: Bits, differing: Sequence[str]) -> Report:
    """All of it as a table."""
    shown = [(name, value if isinstance(value, str) else _digest(value)) for name, value in bits.items()]
    return Report(
        benchmark="bits",
        figures=(Figure(name="differing", value=float(len(differing)), unit="values", aim=0.0),),
        tables=(Table(title="SHA-256", header=("of", "SHA-256"), rows=tuple(shown)),),
        notes=tuple(f"differs: {name}" for name in differing),
    )


def found(arguments: argparse.Namespace) -> Bits:
    """Run everything."""
    rounds = sized(arguments, smallest=1, quick=2, whole=3)
    with tempfile.TemporaryDirectory(prefix="fedcore-bits-") as name:
        folder = Path(name)
        bits = {**vectors(), **secure(folder, rounds), **grouped(folder, rounds)}
        if not arguments.smallest:
            bits |= buffered(folder, 2 * rounds) | demo(folder, short=arguments.quick) | killed(folder, max(2, rounds))
        return bits


def vectors() -> Bits:
    """The files of test vectors."""
    paths = sorted((ROOT / "tests/vectors").glob("*.json"))
    return {f"vectors/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


# --- simulations ------------------------------------------------------------------------------------------------------


def secure(folder: Path, rounds: int) -> Bits:
    """The digits app with its own settings, of which secure aggregation is one."""
    return simulated("secure", folder, EXAMPLES / "digits", rounds, ["--clients", "4"])


def grouped(folder: Path, runs: int) -> Bits:
    """Runs of one round, each from the model of the one before: a later draw follows from signatures, too."""
    bits = Bits()
    start: list[str] = []
    for number in range(1, runs + 1):
        name = f"grouped-{number}"
        words = ["--clients", "9", "--set", "max-corrupt=0.0 min-groups=3", *start]
        bits |= simulated(name, folder, APPS / "bits", 1, words)
        start = ["--initial-model", str(folder / f"{name}.safetensors")]
    return bits


def buffered(folder: Path, versions: int) -> Bits:
    """The digits app over devices of which a fifth is slow."""
    settings = "asynchrony=buffered buffer-size=4 concurrency=8"
    words = ["--clients", "12", "--devices", "slower=0.2:10", "--set", settings]
    return simulated("buffered", folder, EXAMPLES / "digits", versions, [*words, "--run-config", "strategy=fedbuff"])


def simulated(name: str, folder: Path, app: Path, rounds: int, words: Sequence[str]) -> Bits:
    """What `fedcore simulate` gives."""
    model = folder / f"{name}.safetensors"
    command = [*FEDCORE, "simulate", str(app), "--engine", "inline", "--out", str(model), "--json", *words]
    results = json.loads(said_by([*command, "--run-config", f"num-server-rounds={rounds}"]))["results"]
    of_rounds = {
        (kind, int(number)): values for kind in ("train", "evaluate") for number, values in results[kind].items()
    }
    return {f"{name}/model": tensors(model), **curves(name, of_rounds)}


# --- processes --------------------------------------------------------------------------------------------------------


def demo(folder: Path, *, short: bool) -> Bits:
    """What the demo compares; short: a round of the same by the command that it is short for."""
    out = folder / "demo"
    command = [*FEDCORE, "demo", "--out", str(out), "--json"]
    if short:
        words = ["--modes", "federated,local,centralized", "--run-config", "num-server-rounds=1"]
        command = [*FEDCORE, "compare", str(EXAMPLES / "digits"), "--out", str(out), "--json", *words]
    bits = Bits()
    for one in json.loads(said_by(command))["runs"]:
        bits |= curves(f"demo/{one['mode']}", {("", point["round"]): point["metrics"] for point in one["curve"]})
    models = sorted((out / "runs").rglob("*.safetensors"))
    return bits | {f"demo/{path.relative_to(out / 'runs')}": tensors(path) for path in models}


def killed(folder: Path, rounds: int) -> Bits:
    """A run of three clients; after the first round its server is killed, and started again."""
    federation, model = folder / "federation", folder / "killed.safetensors"
    said_by([*FEDCORE, "provision", str(federation), "--clients", str(CLIENTS), "--port", str(_free_port())])
    server = [*FEDCORE, "server", "--federation", str(federation)]
    app = str(EXAMPLES / "digits")
    clients = [
        [*FEDCORE, "client", "--kit", str(kit), "--app", app] for kit in sorted((federation / "clients").iterdir())
    ]
    command = [*FEDCORE, "run", app, "--operator", str(federation / "operator"), "--out", str(model), "--json"]
    command += ["--connect-seconds", str(PATIENCE), "--set", f"min-clients={CLIENTS}"]
    command += ["--run-config", f"num-server-rounds={rounds}"]
    of_rounds: dict[tuple[str, int], Mapping[str, float]] = {}
    resumed = False
    with contextlib.ExitStack() as started:
        first, *_ = [started.enter_context(process(words, folder / "log")) for words in (server, *clients)]
        following = started.enter_context(process(command, folder / "log", stdout=subprocess.PIPE))
        assert following.stdout is not None
        for line in following.stdout:
            event = json.loads(line).get("event", {})
            resumed |= event.get("kind") == "resumed"
            if event.get("kind") == "exchange-done":
                place = event["message_type"], event["server_round"]
                of_rounds[place] = event["metrics"]
                if place == ("evaluate", 1) and first.poll() is None:
                    first.kill()
                    first.wait()
                    started.enter_context(process(server, folder / "log"))
        if following.wait(PATIENCE) or not resumed:
            raise FedcoreError(f"the killed run did not go on to its end:\n{(folder / 'log').read_text()[-3000:]}")
    return {"killed/model": tensors(model), **curves("killed", of_rounds)}


@contextlib.contextmanager
def process(command: Sequence[str], log: Path, stdout: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """One that is ended at the end."""
    with log.open("a", encoding="utf-8") as said:
        started = subprocess.Popen(
            command, env={**os.environ, **ENVIRONMENT}, stdout=stdout or said, stderr=said, text=True
        )
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            started.kill()


def said_by(command: Sequence[str]) -> str:
    """A command's output; FedcoreError if it fails."""
    say(" ".join(command[1:6]))
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FedcoreError(f"exit status {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


# --- bits -------------------------------------------------------------------------------------------------------------


def tensors(path: Path) -> str:
    """SHA-256 over names, kinds, shapes and bytes: what else a file says, such as its time, may change."""
    whole = hashlib.sha256()
    for name, tensor in sorted(load_file(path).items()):
        whole.update(f"{name} {tensor.dtype.str} {tensor.shape}\n".encode() + tensor.tobytes())
    return whole.hexdigest()


def curves(name: str, of_rounds: Mapping[tuple[str, int], Mapping[str, Any]]) -> Bits:
    """Each metric by round, in hex."""
    bits = Bits()
    for (kind, number), metrics in sorted(of_rounds.items()):
        for metric, value in sorted(metrics.items()):
            parts = [float(one).hex() for one in (value if isinstance(value, list) else [value])]
            bits.setdefault("/".join(filter(None, (name, kind, metric))), {})[str(number)] = " ".join(parts)
    return bits


def _digest(value: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def machine(processors: str) -> dict[str, str]:
    """What floats depend on. Processors of one name differ in what the libraries choose their code by.

    Args:
        processors: text of /proc/cpuinfo.
    """
    whole = machine_description()
    versions = {name: whole["packages"][name] for name in ("torch", "numpy", "flwr")}
    kind = dict(re.findall(r"^(cpu family|model)\s*: (\d+)$", processors, re.MULTILINE))
    cpu = ", ".join([whole["cpu"], *(f"{key} {value}" for key, value in kind.items())])
    return {"cpu": cpu, "python": whole["python"], **versions}


def commit() -> str:
    """The last one that touched what runs."""
    words = ["git", "-C", str(ROOT), "log", "-1", "--format=%h", "--", "fedcore", "server_app", "client_app"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
