"""Ed25519 keys in tokens: smart cards, HSMs, or SoftHSM (PKCS #11), named by a URI (RFC 7512) in place of a key file.

A file such as identity.key then has one line, for example

    pkcs11:token=hospital;object=client-3?pin-source=file:/etc/fedcore/pin

Which library speaks to the token is in the variable FEDCORE_PKCS11_MODULE and never in a kit, since others may have
made that, and a library is code. The PIN is in the file that `pin-source` names or in FEDCORE_PKCS11_PIN.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote, unquote_to_bytes

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedcore.errors import EnvironmentFailure, KitError
from fedcore.federation.files import read_identity, read_secret
from fedcore.secagg import Signer

if TYPE_CHECKING:
    import pkcs11

SCHEME: Final = "pkcs11:"
MODULE_VARIABLE: Final = "FEDCORE_PKCS11_MODULE"
PIN_VARIABLE: Final = "FEDCORE_PKCS11_PIN"
_OF_TOKEN: Final = frozenset({"token", "serial", "manufacturer", "model"})
_OF_OBJECT: Final = frozenset({"object", "id", "type"})
_LONGEST: Final = 4096
_POINT: Final = b"\x04\x20"
"""DER of an octet string of 32 bytes, in which a token has a public key."""
_LOCK: Final = threading.Lock()
"""Of the library, whose sessions are for one thread at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUri:
    """Where a key is.

    text: of the URI, which holds no secret.
    token: attributes of the token by name.
    label: of the key; "" for any.
    id: of the key; empty for any.
    pin_file: the file that has the PIN; None for the variable FEDCORE_PKCS11_PIN.
    """

    text: str
    token: dict[str, str]
    label: str
    id: bytes
    pin_file: Path | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a URI; raises KitError, which does not repeat it, since somebody may have put a PIN there."""
        path, _, query = text.removeprefix(SCHEME).partition("?")
        attributes = _attributes(path, ";", _OF_TOKEN | _OF_OBJECT)
        if not text.startswith(SCHEME) or not (attributes.keys() & _OF_TOKEN):
            raise _bad_uri("it names no token")
        if not (attributes.keys() & {"object", "id"}):
            raise _bad_uri("it names no object")
        if attributes.get("type", "private") != "private":
            raise _bad_uri("its type is not private")
        source = unquote(_attributes(query, "&", frozenset({"pin-source"})).get("pin-source", ""))
        pin_file = Path(source.removeprefix("file://").removeprefix("file:")) if source else None
        if pin_file is not None and not pin_file.is_absolute():
            raise _bad_uri("pin-source must be an absolute path, such as file:/etc/fedcore/pin")
        return cls(
            text=text,
            token={name: unquote(attributes[name]) for name in sorted(attributes.keys() & _OF_TOKEN)},
            label=unquote(attributes.get("object", "")),
            id=unquote_to_bytes(attributes.get("id", "")),
            pin_file=pin_file,
        )

    @property
    def token_name(self) -> str:
        """Of the token, for a person."""
        return ", ".join(self.token.values())

    @property
    def key_name(self) -> str:
        """Of the key, for a person."""
        return self.label or self.id.hex()


@dataclass(slots=True, eq=False)
class TokenKey:
    """An Ed25519 key that stays in its token, which signs (`Signer`); opened at once.

    Raises:
        KitError: the library, the PIN or the key is not there, or is wrong.
        EnvironmentFailure: the token is not there.
    """

    uri: TokenUri
    _private: Any = field(init=False, repr=False)
    _public: bytes = field(init=False)

    def __post_init__(self) -> None:
        self._open()

    def sign(self, data: bytes, /) -> bytes:
        """The Ed25519 signature over `data`, 64 bytes; EnvironmentFailure if the token does not make it.

        After a failure, since the token was pulled or its service began again, the library begins again.
        """
        from pkcs11 import Mechanism, PKCS11Error

        with _LOCK:
            try:
                return bytes(self._private.sign(data, mechanism=Mechanism.EDDSA))
            except PKCS11Error:
                try:
                    _library().reinitialize()  # some libraries remember only so that a token came back
                    self._open()
                    return bytes(self._private.sign(data, mechanism=Mechanism.EDDSA))
                except PKCS11Error as error:
                    raise EnvironmentFailure(
                        f"the token {self.uri.token_name} does not sign with {self.uri.key_name} "
                        f"({type(error).__name__}); look whether it is there, and its key is one of Ed25519"
                    ) from error
                except KitError as error:
                    raise EnvironmentFailure(str(error)) from error

    def public_key(self) -> Ed25519PublicKey:
        """The public key that verifies it."""
        return Ed25519PublicKey.from_public_bytes(self._public)

    def _open(self) -> None:
        from pkcs11 import ObjectClass

        session = _session(self.uri)
        self._private = _key(session, self.uri, ObjectClass.PRIVATE_KEY)
        self._public = _public_bytes(_key(session, self.uri, ObjectClass.PUBLIC_KEY), self.uri)


def is_uri(text: str) -> bool:
    """Whether this names a key in a token."""
    return text.strip().startswith(SCHEME)


def read_signer(path: Path) -> Signer:
    """The Ed25519 key of a file: a key in PEM form, or one in a token whose URI the file has.

    Raises KitError if there is none, or if other users can read the file.
    """
    content = read_secret(path)
    if not content.lstrip().startswith(SCHEME.encode()):
        return read_identity(path)
    return TokenKey(TokenUri.parse(content.decode("utf-8", "replace").strip()))


def key_in_token(uri: str) -> TokenKey:
    """The key that a URI names; a new one, made in the token and never to leave it, if the token has none of it."""
    parsed = TokenUri.parse(uri.strip())
    try:
        return TokenKey(parsed)
    except KitError as error:
        if error.check != "no-key":
            raise
    _make(parsed)
    return TokenKey(parsed)


def pin_files(paths: list[Path]) -> list[Path]:
    """The files that hold the PINs of the keys in these files, those of them that are URIs."""
    texts = (read_secret(path).decode("utf-8", "replace").strip() for path in paths if path.exists())
    files = (TokenUri.parse(text).pin_file for text in texts if is_uri(text))
    return [file for file in files if file is not None]


def _attributes(text: str, separator: str, known: frozenset[str]) -> dict[str, str]:
    if len(text) > _LONGEST:
        raise _bad_uri("it is too long")
    attributes: dict[str, str] = {}
    for part in text.split(separator) if text else ():
        name, sign, value = part.partition("=")
        if name in ("pin-value", "module-path", "module-name"):
            variable = PIN_VARIABLE if name == "pin-value" else MODULE_VARIABLE
            raise _bad_uri(f"it has {name}, which does not belong there; set the variable {variable}")
        if not sign or not value or name not in known or name in attributes:
            raise _bad_uri("it has an attribute that is unknown, empty or there twice")
        attributes[name] = value
    return attributes


def _bad_uri(reason: str) -> KitError:
    return KitError(
        f"the URI of a key is wrong: {reason}; write it like pkcs11:token=hospital;object=client-3?"
        "pin-source=file:/etc/fedcore/pin",
        check="uri",
    )


def _library() -> Any:
    try:
        import pkcs11
    except ImportError:
        raise KitError("keys in tokens need python-pkcs11: pip install 'fedcore[pkcs11]'", check="no-extra") from None
    module = os.environ.get(MODULE_VARIABLE, "")
    if not module:
        raise KitError(
            f"set the variable {MODULE_VARIABLE} to the library of the token, such as /usr/lib/softhsm/libsofthsm2.so",
            check="no-module",
        )
    try:
        return pkcs11.lib(module)
    except (pkcs11.PKCS11Error, RuntimeError, OSError) as error:
        raise KitError(
            f"the library {module} of {MODULE_VARIABLE} cannot be used ({type(error).__name__}); is the path right, "
            "and may this user read it and its configuration?",
            check="no-module",
        ) from None


def _token(uri: TokenUri) -> pkcs11.Token:
    import pkcs11

    try:
        tokens = [slot.get_token() for slot in _library().get_slots(token_present=True)]
    except pkcs11.PKCS11Error as error:
        raise KitError(f"the tokens cannot be listed ({type(error).__name__})", check="no-token") from None
    matches = [token for token in tokens if all(_of(token, name) == value for name, value in uri.token.items())]
    if len(matches) > 1:
        serials = ", ".join(sorted(_of(token, "serial") for token in matches))
        raise KitError(
            f"the token {uri.token_name} is there {len(matches)} times; add the serial of yours to the URI, such as "
            f"token=...;serial=...;object=... The serials are: {serials}",
            check="several-tokens",
        )
    if not matches:
        names = ", ".join(sorted({_of(token, "token") for token in tokens} - {""})) or "none"
        raise EnvironmentFailure(
            f"the token {uri.token_name} is not there; plug it in, or start its service, and look whether this user "
            f"may use it. There are: {names}",
            check="no-token",
        )
    token: pkcs11.Token = matches[0]
    return token


def _of(token: pkcs11.Token, attribute: str) -> str:
    value = {
        "token": token.label,
        "serial": token.serial,
        "manufacturer": token.manufacturer_id,
        "model": token.model,
    }[attribute]
    return value.decode("utf-8", "replace").strip() if isinstance(value, bytes) else str(value).strip()


def _session(uri: TokenUri, *, rw: bool = False) -> pkcs11.Session:
    import pkcs11

    token, pin = _token(uri), _pin(uri)
    where = f"in {uri.pin_file}" if uri.pin_file is not None else f"in {PIN_VARIABLE}"
    try:
        try:
            return token.open(user_pin=pin, rw=rw)
        except pkcs11.UserAlreadyLoggedIn:
            return token.open(rw=rw)
    except (pkcs11.PinIncorrect, pkcs11.PinInvalid, pkcs11.PinLenRange):
        raise KitError(
            f"the PIN {where} is not that of the token {uri.token_name}; mend it before you try again, since a token "
            "locks after a few wrong ones",
            check="pin",
        ) from None
    except pkcs11.PinLocked:
        raise KitError(
            f"the PIN of the token {uri.token_name} is locked; unlock it with the token's tools", check="pin-locked"
        ) from None
    except pkcs11.PKCS11Error as error:
        raise KitError(
            f"the token {uri.token_name} opens no session ({type(error).__name__})", check="no-session"
        ) from None


def _pin(uri: TokenUri) -> str:
    if uri.pin_file is not None:
        if not uri.pin_file.exists():
            raise KitError(
                f"{uri.pin_file}, which pin-source names, is not there, or this user may not see it; write the PIN of "
                f"the token {uri.token_name} into it, with mode 0600",
                check="no-pin",
            )
        pin = read_secret(uri.pin_file).decode("utf-8", "replace").strip()
    else:
        pin = os.environ.get(PIN_VARIABLE, "").strip()
    if not pin:
        raise KitError(
            f"no PIN for the token {uri.token_name}: write it into a file of mode 0600 and add "
            f"?pin-source=file:/path to the URI, or set the variable {PIN_VARIABLE}",
            check="no-pin",
        )
    return pin


def _key(session: pkcs11.Session, uri: TokenUri, kind: pkcs11.ObjectClass) -> Any:
    from pkcs11 import Attribute, KeyType

    template: dict[Any, Any] = {Attribute.CLASS: kind, Attribute.KEY_TYPE: KeyType.EC_EDWARDS}
    if uri.label:
        template[Attribute.LABEL] = uri.label
    if uri.id:
        template[Attribute.ID] = uri.id
    keys = list(session.get_objects(template))
    if len(keys) == 1:
        return keys[0]
    what = "public" if kind.name == "PUBLIC_KEY" else "private"
    if not keys:
        # Only a private key that is not there may be made: next to one, there is another fault.
        raise KitError(
            f"the token {uri.token_name} has no {what} Ed25519 key {uri.key_name}; look with pkcs11-tool "
            "--list-objects --login",
            check="no-key" if what == "private" else "no-public-key",
        )
    raise KitError(
        f"the token {uri.token_name} has {len(keys)} {what} keys {uri.key_name}; name the id of one in the URI",
        check="several-keys",
    )


def _public_bytes(key: Any, uri: TokenUri) -> bytes:
    from pkcs11 import Attribute

    point = bytes(key[Attribute.EC_POINT])
    raw = point.removeprefix(_POINT) if len(point) == len(_POINT) + 32 else point  # some tokens have it without
    if len(raw) != 32:
        raise KitError(f"the key {uri.key_name} of the token {uri.token_name} is not one of Ed25519", check="key-kind")
    return raw


def _make(uri: TokenUri) -> None:
    import pkcs11
    from pkcs11 import Attribute, KeyType, Mechanism
    from pkcs11.util.ec import encode_named_curve_parameters

    private = {Attribute.SENSITIVE: True, Attribute.EXTRACTABLE: False, Attribute.PRIVATE: True}
    curve = {Attribute.EC_PARAMS: encode_named_curve_parameters("1.3.101.112")}  # RFC 8410
    with _session(uri, rw=True) as session:
        try:
            session.create_domain_parameters(KeyType.EC_EDWARDS, curve, local=True).generate_keypair(
                mechanism=Mechanism.EC_EDWARDS_KEY_PAIR_GEN,
                store=True,
                label=uri.label or None,
                id=uri.id or os.urandom(8),
                private_template=private,
            )
        except pkcs11.PKCS11Error as error:
            raise KitError(
                f"the token {uri.token_name} makes no Ed25519 key ({type(error).__name__}); look with pkcs11-tool "
                "--list-mechanisms whether it has EC-EDWARDS-KEY-PAIR-GEN and EDDSA",
                check="no-ed25519",
            ) from None
