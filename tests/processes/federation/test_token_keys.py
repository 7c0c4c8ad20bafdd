"""Keys of authority and clients in tokens (SoftHSM): enrolment by commands, rotation, and what goes wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.commands import forked
from support.raising import raises

from fedcore.errors import EnvironmentFailure, KitError
from fedcore.federation import ClientKit
from fedcore.federation.kits.token_keys import MODULE_VARIABLE, PIN_VARIABLE, TokenKey, TokenUri, key_in_token

MODULE = Path("/usr/lib/softhsm/libsofthsm2.so")
PIN = "271828"
pytest.importorskip("pkcs11", reason="needs python-pkcs11, of the extra pkcs11")
pytestmark = [
    pytest.mark.skipif(
        shutil.which("softhsm2-util") is None or not MODULE.exists(), reason="needs SoftHSM: apt install softhsm2"
    ),
    pytest.mark.xdist_group("softhsm"),  # its library reads its settings once in a process
]


@dataclass(frozen=True)
class Tokens:
    folder: Path

    def uri(self, key: str, *, token: str = "hospital", pin: str = "pin") -> str:
        return f"pkcs11:token={token};object={key}?pin-source=file:{self.folder / pin}"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "objects").mkdir()
    settings = folder / "softhsm2.conf"
    settings.write_text(f"directories.tokendir = {folder / 'objects'}\nobjectstore.backend = file\nlog.level = ERROR\n")
    os.environ["SOFTHSM2_CONF"], os.environ[MODULE_VARIABLE] = str(settings), str(MODULE)
    subprocess.run(
        ["softhsm2-util", "--init-token", "--free", "--label", "hospital", "--so-pin", "314159", "--pin", PIN],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    for name, text in (("pin", PIN), ("wrong", "000000"), ("empty", "")):
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(text)
    return Tokens(folder)


def test_a_federation_whose_keys_never_lie_on_a_disk(tokens: Tokens, tmp_path: Path) -> None:
    fed, kit = tmp_path / "fed", tmp_path / "kit"
    authority_key, client_key = tokens.uri("authority"), tokens.uri("client-3")
    made = forked("federation", "create", fed, "--authority-key", authority_key, "--json")
    assert made.returncode == 0, made.stderr
    fingerprint = json.loads(made.stdout)["authority_fingerprint"]
    asked = forked("client", "enroll", kit, "--name", "client-3", "--key", client_key, "--json")
    assert asked.returncode == 0, asked.stderr
    assert (fed / "authority" / "authority.key").read_text() == f"{authority_key}\n"
    assert (kit / "identity.key").read_text() == f"{client_key}\n"
    admit(fed, json.loads(asked.stdout))
    (admission,) = tmp_path.rglob("client-3.admission.json")
    accepted = forked("client", "enroll", kit, "--accept", admission, "--authority-fingerprint", fingerprint)
    assert accepted.returncode == 0, accepted.stderr
    loaded = ClientKit.load(kit)
    loaded.identity.public_key().verify(loaded.identity.sign(b"a statement"), b"a statement")
    assert loaded.roster.keys[1] == loaded.identity.public_key().public_bytes_raw()

    rotated = forked("client", "enroll", kit, "--rotate", "--key", tokens.uri("client-3-next"), "--json")
    assert rotated.returncode == 0, rotated.stderr
    admit(fed, json.loads(rotated.stdout))
    assert PIN not in "".join(
        path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()
    ) + "".join(one.stdout + one.stderr for one in (made, asked, accepted, rotated))


def admit(fed: Path, made: dict[str, str]) -> None:
    approved = forked(
        "federation", "approve", made["request"], "--federation", fed, "--fingerprint", made["fingerprint"]
    )
    assert approved.returncode == 0, approved.stderr


def test_what_is_wrong_has_a_name(tokens: Tokens, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key_in_token(tokens.uri("there"))
    for uri, check in [
        (tokens.uri("there", token="another"), "no-token"),
        (tokens.uri("absent"), "no-key"),
        (tokens.uri("there", pin="empty"), "no-pin"),
        (tokens.uri("there", pin="absent"), "no-pin"),
        ("pkcs11:token=hospital;object=there", "no-pin"),
    ]:
        with raises(EnvironmentFailure if check == "no-token" else KitError, check=check) as refused:
            TokenKey(TokenUri.parse(uri))
        assert PIN not in str(refused.value)
    # In a process of its own: in this one somebody is logged in already.
    refusal = forked("client", "enroll", tmp_path / "kit", "--name", "a", "--key", tokens.uri("there", pin="wrong"))
    assert (refusal.returncode, "000000" in refusal.stderr) == (2, False)
    assert not (tmp_path / "kit").exists()
    monkeypatch.setenv(PIN_VARIABLE, PIN)
    assert TokenKey(TokenUri.parse("pkcs11:token=hospital;object=there")).public_key()


def test_the_same_key_is_taken_again_and_never_shown(tokens: Tokens) -> None:
    first, second = key_in_token(tokens.uri("once")), key_in_token(tokens.uri("once"))
    assert first.public_key() == second.public_key()
    assert PIN not in repr(first)


def test_of_two_tokens_with_one_label_the_serial_tells_which(tokens: Tokens, tmp_path: Path) -> None:
    for _ in range(2):
        subprocess.run(
            ["softhsm2-util", "--init-token", "--free", "--label", "twin", "--so-pin", "314159", "--pin", PIN],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    words = ("client", "enroll", tmp_path / "kit", "--name", "a", "--key")
    refusal = forked(*words, tokens.uri("there", token="twin"))
    assert refusal.returncode == 2
    first, second = re.search(r"serials are: (\S+), (\S+)", refusal.stderr).groups()  # type: ignore[union-attr]
    assert first != second
    done = forked(*words, tokens.uri("there", token=f"twin;serial={second}"))
    assert done.returncode == 0, done.stderr


def test_a_token_that_is_gone_is_named(tokens: Tokens) -> None:
    key = key_in_token(tokens.uri("pulled"))
    hidden = tokens.folder / "hidden"
    shutil.move(tokens.folder / "objects", hidden)
    (tokens.folder / "objects").mkdir()
    try:
        with raises(EnvironmentFailure):
            key.sign(b"a statement")
    finally:
        (tokens.folder / "objects").rmdir()
        shutil.move(hidden, tokens.folder / "objects")
    key.public_key().verify(key.sign(b"a statement"), b"a statement")
