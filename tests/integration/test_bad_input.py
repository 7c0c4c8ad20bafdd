"""Whatever is wrong with files, settings and addresses: one clear line, an exit status, and nothing left behind."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import forked
from support.deployment import Deployment
from support.tiny import TINY

Spoil = Callable[[Path], None]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A provisioned federation that no test touches, at an address where nobody listens."""
    folder = tmp_path_factory.mktemp("pristine")
    with Deployment.open(folder, clients=2) as deployment:
        return deployment.federation.folder


@pytest.fixture
def fed(pristine: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(pristine, tmp_path / "fed"))


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A copy of the tiny app to spoil."""
    return Path(shutil.copytree(TINY, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__")))


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(status: int, named: str, *words: str | Path, untouched: Path) -> str:
    """The command ends with this status, names this (a pattern) on one line of standard error, and changes no file."""
    before = snapshot(untouched)
    done = forked(*words)
    assert done.returncode == status, done.stderr
    assert re.search(named, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert snapshot(untouched) == before
    return done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "qorum=3"), "'qorum'.*--set.*'quorum'"),
        (("--set", "field-bits=17"), "field-bits.*--set.*8, 10, 12, 16, 21, 32, auto.*17"),
        (("--set", "quorum"), "key=value.*'quorum'"),
        (("--run-config", "lrr=1"), "'lrr'.*'lr'"),
        (("--run-config", "lr=fast"), r"\blr\b.*fast"),
    ],
)
def test_settings_of_a_run(fed: Path, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    assert_refused(2, message, "run", TINY, "--operator", fed / "operator", *words, untouched=tmp_path)


def test_an_unknown_key_in_the_apps_pyproject(fed: Path, app: Path, tmp_path: Path) -> None:
    replace(app / "pyproject.toml", "field-bits = 32", "feild-bits = 32")
    message = rf"'feild-bits'.*\[tool\.fedcore\].*{app}/pyproject.toml.*'field-bits'"
    assert_refused(2, message, "run", app, "--operator", fed / "operator", untouched=tmp_path)
    assert_refused(2, message, "client", "--kit", fed / "clients" / "client-1", "--app", app, untouched=tmp_path)
    assert_refused(2, message, "simulate", app, "--clients", "3", untouched=tmp_path)


def unknown_policy(kit: Path) -> None:
    replace(kit / "policy.toml", "min-cohort =", "min-cohorts =")


def unknown_client_key(kit: Path) -> None:
    replace(kit / "client.toml", "server-url =", "server-uri =")


def readable(kit: Path) -> None:
    (kit / "identity.key").chmod(0o644)


def another_clients_key(kit: Path) -> None:
    shutil.copy2(kit.with_name("client-1") / "identity.key", kit / "identity.key")


def altered_roster(kit: Path) -> None:
    replace(kit / "roster.json", "client-1", "client-9")


def no_key(kit: Path) -> None:
    (kit / "identity.key").unlink()


def another_app(kit: Path) -> None:
    replace(kit / "policy.toml", 'app-sha256 = ""', f'app-sha256 = "{"ab" * 32}"')


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (unknown_policy, "'min-cohorts'.*policy.toml.*'min-cohort'"),
        (unknown_client_key, "'server-uri'.*client.toml.*'server-url'"),
        (readable, "identity.key.*chmod 600"),
        (another_clients_key, "identity.key.*roster"),
        (altered_roster, "roster.json: "),
        (no_key, "clients/client-2/identity.key: (?!.*(chmod|roster))"),
        (another_app, "policy.toml.*abababababab"),
        (shutil.rmtree, "clients/client-2: .*client.toml"),
    ],
)
def test_a_clients_kit(fed: Path, tmp_path: Path, spoil: Spoil, message: str) -> None:
    kit = fed / "clients" / "client-2"
    spoil(kit)
    assert_refused(2, message, "client", "--kit", kit, "--app", TINY, untouched=tmp_path)


@pytest.mark.parametrize("secret", ["operator/token", "server/server.key"])
def test_a_secret_that_others_can_read(fed: Path, tmp_path: Path, secret: str) -> None:
    (fed / secret).chmod(0o640)
    command = ("run", TINY, "--operator", fed) if "operator" in secret else ("server", "--federation", fed)
    message = f"{fed / secret}: .*chmod 600 {fed / secret}"
    assert_refused(2, message, *command, untouched=tmp_path)


def test_no_federation_for_the_server_and_the_operator(tmp_path: Path) -> None:
    missing = tmp_path / "fed"
    assert_refused(2, f"{missing}: ", "server", "--federation", missing, untouched=tmp_path)
    assert_refused(2, f"{missing}: ", "run", TINY, "--operator", missing, untouched=tmp_path)


def test_a_server_that_is_not_there(fed: Path, tmp_path: Path) -> None:
    command = ("run", TINY, "--operator", fed, "--connect-seconds", "1", "--out", tmp_path / "m.safetensors")
    assert_refused(4, "https://localhost:.*fedcore server --federation", *command, untouched=tmp_path)


def test_a_port_in_use(fed: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = forked("server", "--federation", fed, "--port", str(port))
    assert done.returncode == 4
    assert re.search(rf"127\.0\.0\.1:{port}\b.*--port", done.stderr)
    assert "Traceback" not in done.stderr


def test_places_for_the_model_that_cannot_be(fed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = ("run", TINY, "--operator", fed, "--connect-seconds", "1", "--out")
    assert_refused(2, f"--out: {tmp_path} ", *run, tmp_path, untouched=tmp_path)
    assert_refused(2, f"--out: .*{tmp_path}/file", *run, tmp_path / "file" / "m.safetensors", untouched=tmp_path)


def test_provisioning_into_a_folder_with_something_in_it(fed: Path, tmp_path: Path) -> None:
    message = f"{fed} "
    assert_refused(2, message, "provision", fed, "--clients", "2", untouched=tmp_path)


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_comparison_over_something_else(tmp_path: Path, force: tuple[str, ...]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    message = f"{tmp_path}/out "
    assert_refused(2, message, "compare", TINY, "--out", tmp_path / "out", *force, untouched=tmp_path)
    file = tmp_path / "out" / "thesis.tex"
    assert_refused(2, f"--out: {file} ", "compare", TINY, "--out", file, *force, untouched=tmp_path)


def test_a_mode_that_does_not_exist(tmp_path: Path) -> None:
    message = "'decentralized'.*--modes.*'centralized'"
    command = ("compare", TINY, "--modes", "federated,decentralized", "--out", tmp_path / "out")
    assert_refused(2, message, *command, untouched=tmp_path)
    assert not (tmp_path / "out").exists()
