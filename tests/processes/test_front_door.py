"""`import fedcore` and the help of every command: what a user finds, without waiting for what is not needed yet."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.resources import files

import pytest

import fedcore

# What takes seconds to import and no help, completion or version needs.
HEAVY = (
    "cryptography",
    "fastapi",
    "flwr",
    "httpx",
    "matplotlib",
    "numpy",
    "pydantic",
    "sklearn",
    "sqlalchemy",
    "torch",
)
COMMANDS = (
    "provision",
    "server",
    "server approve",
    "client",
    "client export",
    "client enroll",
    "federation",
    "federation approve",
    "client audit",
    "run",
    "transcript",
    "transcript verify",
    "simulate",
    "stats",
    "compare",
)

REPORT = f"""
import atexit, runpy, sys
atexit.register(lambda: print("loaded:", *[name for name in {HEAVY!r} if name in sys.modules]))
"""


def loaded_by(statement: str, *words: str, **environment: str) -> tuple[str, list[str]]:
    """What a fresh process prints, and the heavy packages that it has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT + statement, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    said, _, loaded = done.stdout.rpartition("loaded:")
    assert done.returncode == 0, done.stderr
    return said, loaded.split()


def command(*words: str, **environment: str) -> tuple[str, list[str]]:
    return loaded_by("runpy.run_module('fedcore', run_name='__main__', alter_sys=True)", *words, **environment)


def test_the_public_names() -> None:
    assert fedcore.__all__ == [
        "CompareJob",
        "EngineConfig",
        "FedcoreError",
        "FlowerApp",
        "JobSettings",
        "LocalJob",
        "ModelState",
        "Policy",
        "RunRecord",
        "Simulation",
        "__version__",
        "averaging_server",
        "carry_out",
        "local_app",
        "make_strategy",
        "mean_only",
        "parse_modes",
        "provision",
        "sum_only",
        "supervised_app",
    ]
    assert set(fedcore.__all__) <= set(dir(fedcore))
    for name in fedcore.__all__:
        assert getattr(fedcore, name).__class__ is not type(fedcore), f"fedcore.{name} is a module"
    with pytest.raises(AttributeError, match="has no attribute 'simulation'"):
        _ = fedcore.simulation


@pytest.mark.parametrize("package", ["fedcore", "server_app", "client_app"])
def test_each_package_says_that_it_is_typed(package: str) -> None:
    assert (files(package) / "py.typed").is_file()


def test_importing_it_loads_nothing_heavy() -> None:
    assert loaded_by("import fedcore; dir(fedcore); fedcore.FedcoreError; fedcore.__version__") == ("", [])


def test_the_version() -> None:
    assert command("--version") == (f"fedcore {version('fedcore')}\n", [])


@pytest.mark.parametrize("words", ["", *COMMANDS])
def test_help_loads_nothing_heavy(words: str) -> None:
    said, loaded = command(*words.split(), "--help")
    assert loaded == []
    assert f"Usage: fedcore {words}".strip() in said
    assert f"Example: fedcore {words}" in " ".join(said.replace("│", " ").split())


def completions(line: str) -> tuple[list[str], list[str]]:
    """What bash offers for the last word of a line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    said, loaded = command(_FEDCORE_COMPLETE="complete_bash", **words)
    return said.split(), loaded


def test_tab_offers_the_commands() -> None:
    offered, loaded = completions("fedcore ")
    assert set(offered) == {name for name in COMMANDS if " " not in name}
    assert loaded == []


def test_tab_offers_the_options_of_a_command() -> None:
    offered, loaded = completions("fedcore run --")
    assert {"--operator", "--run-config", "--force"} <= set(offered)
    assert loaded == []
