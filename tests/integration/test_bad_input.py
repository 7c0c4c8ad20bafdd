"""Whatever is wrong with files, settings and addresses: one clear line, an exit status, and nothing left behind."""

from __future__ import annotations

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


def assert_refused(status: int, message: str, *words: str | Path, untouched: Path) -> str:
    """The command ends with this status, says this on one line of standard error, and changes no file."""
    before = snapshot(untouched)
    done = forked(*words)
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert snapshot(untouched) == before
    return done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "qorum=3"), "unknown key 'qorum' in --set; did you mean 'quorum'?"),
        (("--set", "field-bits=17"), "field-bits in --set must be one of 8, 10, 12, 16, 21, 32, auto, not 17"),
        (("--set", "quorum"), "expected key=value, not 'quorum'"),
        (("--run-config", "lrr=1"), "unknown key 'lrr' in the run config; did you mean 'lr'?"),
        (("--run-config", "lr=fast"), "lr in the run config must be of type float, not str"),
    ],
)
def test_settings_of_a_run(fed: Path, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    assert_refused(2, message, "run", TINY, "--operator", fed / "operator", *words, untouched=tmp_path)


def test_an_unknown_key_in_the_apps_pyproject(fed: Path, app: Path, tmp_path: Path) -> None:
    replace(app / "pyproject.toml", "field-bits = 32", "feild-bits = 32")
    message = f"unknown key 'feild-bits' in [tool.fedcore] of {app}/pyproject.toml; did you mean 'field-bits'?"
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
        (unknown_policy, "policy.toml; did you mean 'min-cohort'?"),
        (unknown_client_key, "client.toml; did you mean 'server-url'?"),
        (readable, "identity.key: a secret that other users of this machine can read; run: chmod 600"),
        (another_clients_key, "identity.key: not the key that the roster has for this client"),
        (altered_roster, "roster.json: "),
        (no_key, "identity.key: the file is missing; copy the folder again"),
        (another_app, "policy.toml agrees to the app abababababab… only"),
        (shutil.rmtree, "clients/client-2: there is no such folder; name the folder that holds client.toml"),
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
    message = f"{fed / secret}: a secret that other users of this machine can read; run: chmod 600 {fed / secret}"
    assert_refused(2, message, *command, untouched=tmp_path)


def test_no_federation_for_the_server_and_the_operator(tmp_path: Path) -> None:
    missing = tmp_path / "fed"
    assert_refused(2, f"{missing}: there is no such folder", "server", "--federation", missing, untouched=tmp_path)
    assert_refused(2, f"{missing}: there is no such folder", "run", TINY, "--operator", missing, untouched=tmp_path)


def test_a_server_that_is_not_there(fed: Path, tmp_path: Path) -> None:
    command = ("run", TINY, "--operator", fed, "--connect-seconds", "1", "--out", tmp_path / "m.safetensors")
    told = assert_refused(4, "no fedcore server answers at https://localhost:", *command, untouched=tmp_path)
    assert "is it running (fedcore server --federation DIR)" in told


def test_a_port_in_use(fed: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = forked("server", "--federation", fed, "--port", str(port))
    assert done.returncode == 4
    assert f"another process listens on 127.0.0.1:{port}; stop it, or choose one with --port" in done.stderr
    assert "Traceback" not in done.stderr


def test_places_for_the_model_that_cannot_be(fed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = ("run", TINY, "--operator", fed, "--connect-seconds", "1", "--out")
    assert_refused(2, f"--out: {tmp_path} is a folder", *run, tmp_path, untouched=tmp_path)
    assert_refused(2, "--out: no file can be made in", *run, tmp_path / "file" / "m.safetensors", untouched=tmp_path)


def test_provisioning_into_a_folder_with_something_in_it(fed: Path, tmp_path: Path) -> None:
    message = f"{fed} exists and is not an empty folder; choose another one, nothing was changed"
    assert_refused(2, message, "provision", fed, "--clients", "2", untouched=tmp_path)


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_comparison_over_something_else(tmp_path: Path, force: tuple[str, ...]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    message = "holds something else than a comparison; it is left as it is" if force else "is not empty; choose another"
    assert_refused(2, message, "compare", TINY, "--out", tmp_path / "out", *force, untouched=tmp_path)
    file = tmp_path / "out" / "thesis.tex"
    assert_refused(2, f"--out: {file} is a file", "compare", TINY, "--out", file, *force, untouched=tmp_path)


def test_a_mode_that_does_not_exist(tmp_path: Path) -> None:
    message = "unknown key 'decentralized' in --modes; did you mean 'centralized'?"
    command = ("compare", TINY, "--modes", "federated,decentralized", "--out", tmp_path / "out")
    assert_refused(2, message, *command, untouched=tmp_path)
    assert not (tmp_path / "out").exists()
