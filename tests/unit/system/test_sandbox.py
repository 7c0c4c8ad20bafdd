"""What user code is given, before there is a process; that the kernel holds it to that is in tests/processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.raising import raises

import fedcore
from client_app.ranks.group import take_new_model
from fedcore.errors import AppError, ConfigurationError, WorkerDied
from fedcore.system.sandbox import landlock, namespaces, seccomp
from fedcore.system.sandbox.account import Account
from fedcore.system.sandbox.sandbox import (
    Rules,
    Sandbox,
    clean_environment,
    describe,
    named_paths,
    python_paths,
    refuse_to_show,
)
from server_app.runs.files.run_files import RunFiles
from server_app.storage.objects import DirectoryObjects


def test_only_what_a_computation_needs_is_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = {"LC_ALL": "C", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "1", "HF_HOME": str(tmp_path), "TZ": "UTC"}
    gone = {
        **dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "NVIDIA_API_KEY", "HF_TOKEN", "SSH_AUTH_SOCK", "HTTPS_PROXY"), "x"),
        **dict.fromkeys(("PYTHONPATH", "PYTHONSTARTUP", "PYTHONPYCACHEPREFIX", "TORCHINDUCTOR_CACHE_DIR"), "x"),
    }
    for name, value in {**kept, **gone, "SITE": "north"}.items():
        monkeypatch.setenv(name, value)
    environment = clean_environment(Rules(variables=("SITE",)), tmp_path / "private")
    assert kept.items() <= environment.items()
    assert not gone.keys() & environment.keys()
    assert environment["SITE"] == "north"
    assert environment["HOME"] == environment["TMPDIR"] == str(tmp_path / "private")
    assert environment["PYTHONDONTWRITEBYTECODE"] == environment["PYTHONNOUSERSITE"] == "1"
    assert tmp_path in named_paths(environment)
    with raises(ConfigurationError, check="variable-not-set", match="NOWHERE"):
        clean_environment(Rules(variables=("NOWHERE",)), tmp_path)


def test_threads_are_not_pinned_where_that_would_end_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    found = [clean_environment(Rules(confined=confined), tmp_path).keys() for confined in (True, False)]
    assert [len([name for name in names if "OMP_" in name]) for names in found] == [1, 4]


def test_rules_that_cannot_be(tmp_path: Path) -> None:
    with raises(ConfigurationError, check="variable-name", match="'A=B'"):
        Rules(variables=("A=B",))
    with raises(ConfigurationError, check="not-there", match="no-data"):
        Rules(read=(tmp_path / "no-data",))


def test_users_that_an_app_cannot_run_as(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(ConfigurationError, check="unknown-user", match="nobody-here"):
        Rules(user="nobody-here")
    with raises(ConfigurationError, check="root-user"):
        Rules(user="root")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with raises(ConfigurationError, check="not-root", match="nobody"):
        Rules(user="nobody")


def test_a_secret_must_not_lie_in_what_may_be_read(tmp_path: Path) -> None:
    key = tmp_path / "kit" / "identity.key"
    refuse_to_show([tmp_path / "data"], [key], Rules())
    (tmp_path / "link").symlink_to(tmp_path)
    for readable in (tmp_path, tmp_path / "kit", key, tmp_path / "link"):
        with raises(ConfigurationError, check="secret-readable", match=rf"{key}.*{readable}:"):
            refuse_to_show([readable], [key], Rules())
        refuse_to_show([readable], [key], Rules(confined=False))
    with raises(ConfigurationError, check="secret-readable", match="/usr"):
        refuse_to_show([], [Path("/usr/local/kit/identity.key")], Rules())


def test_a_sandbox_survives_the_way_to_its_process(tmp_path: Path) -> None:
    account = Account(1000, 1001, (1001, 44))
    sandbox = Sandbox(read=(tmp_path / "a b",), write=(tmp_path / "ü",), network=True, account=account)
    told = Sandbox.from_json(sandbox.command("fedcore.system")[-2])
    assert told.read[-1] == tmp_path / "a b"
    assert (told.write, told.network, told.confined) == (sandbox.write, True, True)
    assert (told.account, told.shared_memory) == (account, None)


@pytest.mark.parametrize(
    ("version", "filtered", "kind", "network", "shown", "warns"),
    [
        (7, True, "all", False, ("files restricted (Landlock 7)", "shared memory of its own", "no network"), False),
        (7, True, "files", True, ("it sees which programs", "the network, over which the ranks"), False),
        (7, True, "", False, ("Landlock 7", "no namespaces", "no network"), True),
        (
            7,
            False,
            "files",
            True,
            ("limits of processes that are this user's can be changed", "; it has the network"),
            True,
        ),
        (4, False, "", False, ("no TCP, but other protocols",), True),
        (4, False, "all", False, ("no network",), True),
        (3, False, "", False, ("it has the network, which nobody can filter",), True),
        (0, True, "", False, ("no Landlock: user code can read and change whatever this user can",), True),
        (0, True, "all", False, ("the kernel has no Landlock; files, processes",), True),
    ],
)
def test_the_log_says_what_holds(
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    filtered: bool,
    kind: str,
    network: bool,
    shown: tuple[str, ...],
    warns: bool,
) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: version)
    monkeypatch.setattr(seccomp, "is_known", lambda: filtered)
    monkeypatch.setattr(namespaces, "kind_of", lambda _: kind)
    text, is_bad = describe(Rules(), network=network)
    assert [part for part in shown if part not in text] == []
    assert is_bad is warns
    assert describe(Rules(confined=False), network=network)[1]


def test_a_link_that_user_code_leaves_gives_nothing_away(tmp_path: Path) -> None:
    """The agent and the server, which may read the secret, would send it as a model."""
    secret = tmp_path / "identity.key"
    secret.write_text("secret")
    scratch, out, work = tmp_path / "scratch", tmp_path / "out", tmp_path / "run" / "work"
    scratch.mkdir()
    work.mkdir(parents=True)
    (tmp_path / "run" / "handed").mkdir()
    for folder in (scratch, work):
        (folder / "link").symlink_to(secret)
        (folder / "folder").mkdir()
    files = RunFiles(DirectoryObjects(tmp_path), "run-1", tmp_path / "run")
    for name in ("link", "folder", "absent"):
        with raises(AppError, check="model-file"):
            take_new_model(scratch / name, out)
        assert not os.path.lexists(out)
        with raises(WorkerDied, check="foreign-file"):
            files.from_app(str(work / name))
    with pytest.raises(WorkerDied):
        files.from_app(str(secret))
    assert secret.read_text() == "secret"
    for folder in (scratch, work):
        (folder / "model").write_text("weights")
    take_new_model(scratch / "model", out)
    assert [out.read_text(), files.from_app(str(work / "model")).read_text()] == ["weights", "weights"]


def test_user_code_may_read_all_of_fedcore() -> None:
    assert Path(fedcore.__file__).parent in python_paths()
