"""`import fedcore` and the help of every command: what a user finds, without waiting for what is not needed yet."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest

import fedcore
from client_app.operator.completion import CACHE_FILE
from fedcore.federation import provision

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
    "client status",
    "federation",
    "federation approve",
    "client audit",
    "run",
    "transcript",
    "transcript verify",
    "simulate",
    "privacy",
    "runs",
    "stats",
    "study",
    "compare",
    "partition",
    "demo",
    "check",
    "new",
    "predict",
    "export",
    "card",
    "login",
    "logout",
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
        timeout=600,
        check=False,
    )
    said, _, loaded = done.stdout.rpartition("loaded:")
    assert done.returncode == 0, done.stderr
    return said, loaded.split()


def command(*words: str, **environment: str) -> tuple[str, list[str]]:
    return loaded_by("runpy.run_module('fedcore', run_name='__main__', alter_sys=True)", *words, **environment)


def test_the_public_names() -> None:
    assert fedcore.__all__ == [
        "CheckReport",
        "ClassWeights",
        "CompareJob",
        "ComparisonResult",
        "Dataset",
        "EngineConfig",
        "FedcoreError",
        "Federation",
        "FlowerApp",
        "JobSettings",
        "LocalJob",
        "ModelState",
        "OptimizerConfig",
        "Policy",
        "Rescale",
        "Run",
        "RunRecord",
        "Simulation",
        "Split",
        "Standardise",
        "TableSchema",
        "TrainingColumns",
        "__version__",
        "averaging_server",
        "check",
        "client_data",
        "compare",
        "execute_comparison",
        "group_means",
        "load_digits",
        "load_image",
        "load_image_folder",
        "local_app",
        "make_strategy",
        "mean_only",
        "parse_modes",
        "provision",
        "register",
        "simulate",
        "sum_only",
        "supervised_app",
        "table_data",
        "trees_app",
        "trees_server",
    ]
    assert set(fedcore.__all__) <= set(dir(fedcore))
    for name in fedcore.__all__:
        assert getattr(fedcore, name).__class__ is not type(fedcore), f"fedcore.{name} is a module"
    with pytest.raises(AttributeError, match="'simulator'"):
        _ = fedcore.simulator


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


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fedcore compare examples/digits --modes federated,ps-", {"federated,ps-sync", "federated,ps-ssp"}),
        ("fedcore compare examples/digits --partition d", {"dirichlet:"}),
        ("fedcore run examples/digits --set clip", {"clip-norm=", "clipping="}),
        ("fedcore run examples/digits --set clipping=", {"clipping=repeat", "clipping=warn"}),
        ("fedcore simulate examples/digits --run-config num-", {"num-server-rounds="}),
        ("fedcore compare examples/digits --metric eval_a", {"eval_acc", "eval_acc:max"}),
        ("fedcore client --engine fs", {"fsdp"}),
        ("fedcore runs list --status f", {"finished", "failed"}),
    ],
)
def test_tab_offers_values(line: str, expected: set[str]) -> None:
    offered, loaded = completions(line)
    assert expected <= set(offered)
    assert loaded == []


def test_tab_offers_runs_that_were_seen_and_waits_for_nobody(tmp_path: Path) -> None:
    """The kit's server takes a connection and says nothing."""
    provision(tmp_path / "fed", name="tab", clients=2, now=datetime.now(UTC))
    kit = tmp_path / "fed" / "operator"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = kit / "operator.toml"
        text = re.sub(r"https://[^\"]+", f"https://127.0.0.1:{silent.getsockname()[1]}", settings.read_text())
        settings.write_text(text)
        assert completions(f"fedcore runs show --operator {kit} ") == ([], [])
        seen = kit / CACHE_FILE
        seen.write_text('[["3f2a", "finished, digits"], ["77bc", "failed, digits"]]')
        os.utime(seen, (1.0, 1.0))
        assert completions(f"fedcore runs show --operator {kit} ") == (["last", "3f2a", "77bc"], [])
        assert completions(f"fedcore runs attach --operator {kit} 7") == (["77bc"], [])
