"""URIs of keys in tokens: what they name, and what they may not hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.raising import raises

from fedcore.errors import KitError
from fedcore.federation.files import write_file
from fedcore.federation.kits.identity import open_identity
from fedcore.federation.kits.token_keys import MODULE_VARIABLE, TokenUri, pin_files

GOOD = "pkcs11:token=a%20hospital;serial=12;object=client-3;type=private?pin-source=file:/etc/fedcore/pin"


def test_a_uri_names_token_key_and_pin() -> None:
    uri = TokenUri.parse(GOOD)
    assert uri.token == {"token": "a hospital", "serial": "12"}
    assert (uri.label, uri.id, uri.pin_file) == ("client-3", b"", Path("/etc/fedcore/pin"))
    uri = TokenUri.parse("pkcs11:token=a;id=%01%FF")
    assert (uri.label, uri.id, uri.pin_file) == ("", b"\x01\xff", None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pkcs11:",
        "pkcs11:object=a",
        "pkcs11:token=a",
        "pkcs11:token=a;object=",
        "pkcs11:token=a;object=b;object=c",
        "pkcs11:token=a;object=b;type=public",
        "pkcs11:token=a;object=b;slot=3",
        "pkcs11:token=a;object=b?pin-source=|command",
        "pkcs11:token=a;object=b?pin-source=pin",
        "pkcs11:token=a;object=b?module-path=/tmp/evil.so",
        "pkcs11:token=a;object=b?module-name=evil",
        f"pkcs11:token=a;object={'b' * 5000}",
        "token=a;object=b",
    ],
)
def test_another_uri_is_refused(text: str) -> None:
    with raises(KitError, check="uri"):
        TokenUri.parse(text)


def test_a_pin_in_a_uri_is_refused_and_not_repeated() -> None:
    with raises(KitError, check="uri") as refused:
        TokenUri.parse("pkcs11:token=a;object=b?pin-value=271828")
    assert "271828" not in str(refused.value)


def test_a_kit_names_no_library(client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else who makes a kit for somebody could have them load its code."""
    pytest.importorskip("pkcs11", reason="needs python-pkcs11, of the extra pkcs11")
    monkeypatch.delenv(MODULE_VARIABLE, raising=False)
    key = client / "identity.key"
    key.unlink()
    write_file(key, f"{GOOD}\n", secret=True)
    assert pin_files([key, client / "identity.next.key"]) == [Path("/etc/fedcore/pin")]
    with raises(KitError, check="no-module"):
        open_identity(client)
    monkeypatch.setenv(MODULE_VARIABLE, "/nowhere/library.so")
    with raises(KitError, check="no-module"):
        open_identity(client)
    key.chmod(0o644)
    with raises(KitError):
        open_identity(client)
