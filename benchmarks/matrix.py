"""Whether the wheel works on each Python, Flower and torch that pyproject.toml admits: part of the tests, and the demo.

    make matrix

Each arm is an environment of its own in build/matrix, without this checkout: the wheel, Flower and torch in the arm's
versions, everything else as the locks have it or in its newest version. The tests run in a folder that has no package
of fedcore. Interpreters are looked for on the PATH and at pyenv's; an arm without one, or without a build of torch,
says so.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, keep, parser, quiet_environment, run, say
from fedcore.errors import EnvironmentFailure

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("fedcore", "server_app", "client_app")
BUILT_FROM: Final = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
TESTS: Final = (
    "tests/unit/flower",
    "tests/unit/wire",
)
"""What depends most on the interpreter, on Flower or on torch; `--tests tests/unit` for more."""
TOOLS: Final = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis", "pyyaml", "xgboost-cpu")
FLOWERS_OWN: Final = ("flwr", "uv", "certifi", "ray")
"""What the lock has for one version of Flower: another one asks for others."""
FAILED: Final = 1
"""pytest's status if tests failed; a larger one says that it could not run them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One environment. locked: all but Flower and torch in the versions of requirements-dev.lock, not the newest."""

    python: str
    flower: str
    torch: str
    locked: bool

    @property
    def name(self) -> str:
        """That of its folder."""
        return f"{self.python}-flwr{self.flower}-torch{self.torch}"


# The oldest torch, which asks for an older setuptools than the lock has; that of the images; and the newest.
ARMS: Final = (
    Arm(python="3.11", flower="1.41", torch="2.11", locked=False),
    Arm(python="3.11", flower="1.41", torch="2.13", locked=True),
    Arm(python="3.11", flower="1.42", torch="2.15", locked=False),
    Arm(python="3.12", flower="1.41", torch="2.13", locked=True),
    Arm(python="3.12", flower="1.42", torch="2.15", locked=False),
    Arm(python="3.13", flower="1.41", torch="2.13", locked=True),
    Arm(python="3.13", flower="1.42", torch="2.15", locked=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one arm. lacks: why it did not run; empty if it ran. versions: name -> what was installed."""

    lacks: str = ""
    versions: dict[str, str]
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    demo: str = "-"
    seconds: float = 0.0


def main() -> int:
    """Run the arms and show the table."""
    arguments = parser("The wheel on every Python and Flower.")
    arguments.add_argument("--only", default="", help="arms whose name begins with this, such as 3.12-flwr1.42")
    arguments.add_argument(
        "--folder",
        type=lambda text: Path(text).absolute(),
        default=ROOT / "build" / "matrix",
        help="for wheel and environments",
    )
    arguments.add_argument("--find-links", action="append", default=[], help="a folder of wheels; may be repeated")
    arguments.add_argument("--tests", nargs="+", default=TESTS, help="files and folders of tests")
    arguments.add_argument("--workers", type=int, default=2, help="of pytest")
    return run(measure, arguments.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """One arm after the other."""
    arms = [arm for arm in ARMS if arm.name.startswith(arguments.only)]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    wheel = _wheel(arguments.folder)
    # Without the packages: the tests import those that are installed.
    source = _copy(arguments.folder / "source", lambda name: Path(name).parts[0] not in PACKAGES)
    outcomes: list[tuple[Arm, Outcome]] = []
    for arm in arms:
        outcomes.append((arm, _outcome(arm, wheel, source, arguments)))
        keep(_report(outcomes, arguments.tests), arguments)
    return _report(outcomes, arguments.tests)


def _report(outcomes: Sequence[tuple[Arm, Outcome]], tests: Sequence[str]) -> Report:
    failures = sum(outcome.failed + (outcome.demo == "failed") for _, outcome in outcomes)
    idle = [f"{arm.name}: not run: {outcome.lacks}" for arm, outcome in outcomes if outcome.lacks]
    return Report(
        benchmark="matrix",
        figures=(
            Figure(name="failures", value=failures, unit="count", aim=0),
            Figure(name="arms_not_run", value=len(idle), unit="count", aim=0),
        ),
        tables=(
            Table(
                title="Arms",
                header=("Python", "flwr", "torch", "others", "passed", "failed", "skipped", "demo", "seconds"),
                rows=tuple(_row(arm, outcome) for arm, outcome in outcomes),
            ),
        ),
        notes=(f"tests: {' '.join(tests)}", "seconds: of the tests and the demo, not of the installation", *idle),
    )


def interpreter(version: str) -> Path | None:
    """The Python of this minor version: of the PATH, or the newest of pyenv's; None if there is none."""
    on_path = shutil.which(f"python{version}", path=_path_without_shims())
    if on_path is not None:
        return Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    there = [path for path in pyenv.glob(f"{version}.*/bin/python") if re.fullmatch(r"[\d.]+", path.parts[-3])]
    return max(there, key=lambda path: int(path.parts[-3].rpartition(".")[2]), default=None)


def _path_without_shims() -> str:
    """Without the shims of pyenv, which answer for every version, and then refuse those that are not chosen."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if not folder.endswith("/shims"))


def constraints(lock: str, arm: Arm) -> str:
    """What uv holds to: the arm's Flower and torch, and the lock's versions, of the newest only those of the tools."""
    pins = re.findall(r"^(\S+)==([^\s;]+)", lock, re.MULTILINE)
    kept = [(name, version) for name, version in pins if (arm.locked and name not in FLOWERS_OWN) or name in TOOLS]
    own = [("flwr", f"{arm.flower}.*"), ("torch", f"{arm.torch}.*")]
    return "".join(f"{name}=={version}\n" for name, version in [*own, *kept])


def _outcome(arm: Arm, wheel: Path, source: Path, arguments: argparse.Namespace) -> Outcome:
    say(f"matrix: {arm.name}")
    python = interpreter(arm.python)
    if python is None:
        return Outcome(lacks=f"no Python {arm.python} on this machine", versions={})
    environment = arguments.folder / arm.name
    lacks = _install(arm, python, environment, wheel, arguments.find_links)
    if lacks:
        return Outcome(lacks=lacks, versions={})
    began = time.monotonic()
    passed, failed, skipped = _pytest(environment, source, arguments)
    demo = _demo(environment)
    return Outcome(
        versions=_versions(environment),
        passed=passed,
        failed=failed,
        skipped=skipped,
        demo=demo,
        seconds=time.monotonic() - began,
    )


def _install(arm: Arm, python: Path, environment: Path, wheel: Path, links: Sequence[str]) -> str:
    """Why it is not possible; empty if the arm's environment is complete."""
    limits = environment.with_name(environment.name + ".constraints")
    limits.write_text(constraints((ROOT / "requirements-dev.lock").read_text(encoding="utf-8"), arm), encoding="utf-8")
    target = ["--python", str(environment)]
    links = [word for folder in links for word in ("--find-links", folder)]
    steps = [
        [*links, f"torch=={arm.torch}.*"],
        [f"fedcore[postgres,s3,tracing] @ {wheel.as_uri()}", *TOOLS, "--constraint", str(limits)],
    ]
    if arm.locked:  # to the byte, as an image has them
        steps.insert(1, ["--no-deps", "--require-hashes", "--requirements", str(ROOT / "requirements-extras.lock")])
    try:
        _uv("venv", "--quiet", "--clear", "--python", str(python), str(environment))
        for words in steps:
            _uv("pip", "install", "--quiet", *target, *words)
        _uv("pip", "check", *target)
    except EnvironmentFailure as error:
        return " ".join(str(error).split())
    return ""


def _pytest(environment: Path, source: Path, arguments: argparse.Namespace) -> tuple[int, int, int]:
    """Counts of passed, failed and skipped tests; what failed is on standard error."""
    report = environment.with_name(environment.name + ".xml")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(arguments.workers), f"--junitxml={report}"]
    done = _started(environment, [*words, *arguments.tests], source)
    if done.returncode > FAILED:
        raise EnvironmentFailure(f"pytest cannot run the tests: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    if done.returncode:
        say(done.stdout)
    [suite] = ElementTree.parse(report).iter("testsuite")
    total, failed, errors, skipped = (int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped"))
    return total - failed - errors - skipped, failed + errors, skipped


def _demo(environment: Path) -> str:
    """Whether `fedcore demo` ends well in an empty folder."""
    folder = environment.with_name(environment.name + ".demo")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    done = _started(environment, ["-m", "fedcore", "demo", "--json"], folder)
    if done.returncode or not (folder / "demo-out" / "report.html").is_file():
        say(done.stderr[-4000:])
        return "failed"
    return "works"


def _started(environment: Path, words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """An arm's Python, with its own programs first and nothing of this environment."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    variables["PATH"] = f"{environment / 'bin'}{os.pathsep}{_path_without_shims()}"
    return subprocess.run(
        [str(environment / "bin" / "python"), *words],
        cwd=folder, env={**variables, **quiet_environment()}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def _versions(environment: Path) -> dict[str, str]:
    code = (
        "import platform, importlib.metadata as m; print(platform.python_version(), *map(m.version, ['flwr', 'torch']))"
    )
    return dict(
        zip(("python", "flwr", "torch"), _started(environment, ["-c", code], ROOT.parent).stdout.split(), strict=True)
    )


def _row(arm: Arm, outcome: Outcome) -> tuple[str, ...]:
    versions = {"python": arm.python, "flwr": arm.flower, "torch": arm.torch, **outcome.versions}
    counts = (outcome.passed, outcome.failed, outcome.skipped) if not outcome.lacks else ("-", "-", "-")
    return (
        *versions.values(),
        "locked" if arm.locked else "newest",
        *map(str, counts),
        outcome.demo,
        f"{outcome.seconds:.0f}" if not outcome.lacks else "-",
    )


def _wheel(folder: Path) -> Path:
    """Made of what the repository has, in a folder without what an earlier build left."""
    package = _copy(folder / "package", lambda name: Path(name).parts[0] in (*PACKAGES, *BUILT_FROM))
    shutil.rmtree(folder / "wheel", ignore_errors=True)
    words = [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder / "wheel",
        package,
    ]
    subprocess.run([sys.executable, *map(str, words)], check=True)
    [wheel] = (folder / "wheel").glob("*.whl")
    return wheel


def _copy(folder: Path, wanted: Callable[[str], bool]) -> Path:
    """The files of the repository that are wanted."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if wanted(name) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def _uv(*words: str) -> None:
    """Run uv; raises EnvironmentFailure with what it says if it fails."""
    program = Path(sys.executable).parent / "uv"
    done = subprocess.run([str(program), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentFailure(f"uv {words[0]}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main())
