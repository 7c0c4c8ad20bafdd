"""What a machine with a GPU has for `benchmarks/gpu.py`, and what it lacks. Of the standard library alone.

Such a machine often has a Python with torch for CUDA and no network. Nothing is installed into that Python: fedcore is
copied into an environment of its own, in build/gpu, which sees all packages of the other. A copy, as the sandbox of
user code shows it only folders of packages: a path to this folder would have to be listed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import tomllib
import venv
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fedcore", "server_app", "client_app")
TESTING = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis")
_BELOW = ("pluggy", "iniconfig", "sortedcontainers")
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)


def missing() -> list[str]:
    """Packages that fedcore or its tests need and this Python lacks, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[\[<>=~! ;]", line, maxsplit=1)[0] for line in project["dependencies"]]
    return [name for name in [*names, *TESTING] if not is_installed(name)]


def help_without(names: list[str]) -> str:
    """What to do where packages are missing, as commands: the first for a machine that has a network."""
    locks = [(ROOT / name).read_text(encoding="utf-8") for name in ("requirements.lock", "requirements-dev.lock")]
    runtime, testing = ({name.lower(): version for name, version in _LOCKED.findall(text)} for text in locks)
    wanted = runtime | {name: testing[name] for name in (*TESTING, *_BELOW) if name in testing}
    wanted.pop("torch", None)  # the lock's is for processors
    wheels = " ".join(f"{name}=={version}" for name, version in sorted(wanted.items()) if not is_installed(name))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"{sys.executable} lacks {', '.join(names)}. With a network: make install. Without one, on a machine that has "
        f"one:\n  python3 -m pip download --no-deps --only-binary=:all: --python-version {version} "
        f"--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 "
        f"-d wheels {wheels}\nand here:\n"
        f"  {sys.executable} -m pip install --no-index --no-deps --target build/wheels/site-packages wheels/*.whl\n"
        "  PYTHONPATH=$PWD/build/wheels/site-packages make gpu"
    )


def python() -> str:
    """A Python that has fedcore and all packages of this one: this one itself, or that of build/gpu, newly made."""
    return sys.executable if is_installed("fedcore") else beside(ROOT / "build" / "gpu")


def beside(folder: Path) -> str:
    """Make an environment in `folder` that has fedcore and sees all packages of this Python; its interpreter."""
    venv.create(folder, clear=True, with_pip=False, symlinks=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    _describe(site)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    given = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    # Not as plain lines: what an interpreter finds by path files of its own counts as well.
    own = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    lines = [str(ROOT), *given, *(f"import site; site.addsitedir({path!r})" for path in own)]
    (site / "gpu.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "bin" / "python")


def _describe(site: Path) -> None:
    """What an installation leaves of itself: by it the command line finds its commands."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = site / f"fedcore-{project['version']}.dist-info"
    about.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: fedcore\nVersion: {project['version']}\n"
    (about / "METADATA").write_text(text, encoding="utf-8")
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    words = [
        "\n".join([f"[{group}]", *(f"{name} = {place}" for name, place in entries.items())])
        for group, entries in groups.items()
    ]
    (about / "entry_points.txt").write_text("\n\n".join(words) + "\n", encoding="utf-8")


def is_installed(name: str) -> bool:
    """Whether this Python has a package."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
