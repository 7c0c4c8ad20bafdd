"""The values in the files of a kit, checked one by one; each refusal names the file and what to write instead."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from fedcore.federation.approval import ANY, APPROVED_FILE, LISTED, ApprovedApps
from fedcore.federation.files import REMEDY, broken, read_certificate, read_private_key, read_secret, read_text
from fedcore.federation.roster import Roster
from fedcore.system.sandbox.sandbox import Rules

NodeValue = bool | int | float | str
PROGRESS_SECONDS: Final = 600.0
"""Without a line of client.toml."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


def approved_apps(path: Path, values: Mapping[str, Any]) -> ApprovedApps | None:
    """The list of approved apps; None if the owner approves any."""
    choice = values.get("approve-apps", LISTED)
    if choice not in (LISTED, ANY):
        raise broken(path, f'approve-apps must be "{LISTED}" or "{ANY}"', "mend the line")
    return ApprovedApps(path.parent / APPROVED_FILE) if choice == LISTED else None


def proxies(path: Path, texts: list[Any]) -> tuple[str, ...]:
    """The addresses and networks of `trust-proxy`."""
    for text in texts:
        try:
            ipaddress.ip_network(text, strict=False)
        except (TypeError, ValueError):
            raise broken(
                path,
                "trust-proxy must list addresses or networks of proxies",
                'mend the line, for example trust-proxy = ["10.0.0.2"]',
            ) from None
    return tuple(texts)


def accel_location(path: Path, values: Mapping[str, Any]) -> str:
    """The location at which an nginx serves files; "" for none."""
    text: str = values.get("accel-location", "")
    if text and not re.fullmatch(r"/([A-Za-z0-9_-]+/)+", text):
        what = 'mend the line, for example accel-location = "/fedcore-files/"'
        raise broken(path, "accel-location must be a location of nginx that begins and ends with a slash", what)
    if text and not values.get("trust-proxy"):
        what = 'name that nginx, for example trust-proxy = ["10.0.0.2"]'
        raise broken(
            path,
            "accel-location needs trust-proxy: the server tells only an nginx that is named there where files are",
            what,
        )
    return text


def limit_of(path: Path, values: Mapping[str, Any], key: str) -> int:
    """A limit; 0 stands for none."""
    limit: int = values.get(key, 0)
    if limit < 0:
        raise broken(path, f"{key} must not be negative; 0 stands for no limit", "mend the line")
    return limit


def app_rules(path: Path, values: Mapping[str, Any]) -> Rules:
    """What the sandbox allows the app."""
    env, read = values.get("app-env", []), values.get("app-read", [])
    if not all(isinstance(text, str) for text in (*env, *read)):
        raise broken(path, "app-env and app-read must be lists of strings", "mend the line")
    return Rules(
        variables=tuple(env),
        read=tuple(path.parent / text for text in read),
        confined=values.get("app-sandbox", True),
        user=values.get("app-user", ""),
    )


def listen_address(path: Path, address: str) -> str:
    """The address of the metrics; "" for none."""
    host, _, port = address.rpartition(":")
    if address and not (host and port.isascii() and port.isdecimal() and 0 < int(port) <= 65535):
        raise broken(path, "metrics-listen must look like 127.0.0.1:9464", "mend the line")
    return address


def is_https_address(url: str) -> bool:
    """Whether this is https://HOST or https://HOST:PORT, with or without a slash at its end."""
    return re.fullmatch(r"https://[^/?#@\s]+/?", url) is not None


def https_address(path: Path, key: str, url: str) -> str:
    """An address of the server, without a slash at its end; "" for none."""
    if url and not is_https_address(url):
        raise broken(path, f"{key} must look like https://fl.example.org:8443", "mend the line")
    return url.rstrip("/")


def check_federation(path: Path, roster: Roster, federation: str) -> None:
    """Refuse a roster of another federation."""
    if roster.federation != federation:
        raise broken(
            path,
            f"the roster is for the federation {roster.federation!r}, not {federation!r}",
            check="other-federation",
        )


def check_membership(path: Path, roster: Roster, client_id: int, name: str) -> None:
    """Refuse a roster without this client under this name, or one that revokes it."""
    if client_id not in roster.names:
        raise broken(path, f"client {client_id} is not on the roster", check="not-on-roster")
    if name != roster.names[client_id]:
        raise broken(path, f"the roster has another name for client {client_id}", check="other-name")
    if client_id not in roster.keys:
        raise broken(
            path,
            f"roster {roster.version} revokes this client",
            "ask the authority; a new kit needs a new name",
            check="revoked",
        )


def server_urls(path: Path, values: Mapping[str, Any]) -> tuple[str, ...]:
    """The addresses of `server-url` and of `servers`, each once."""
    named = [values["server-url"]] if "server-url" in values else []
    servers = tuple(dict.fromkeys(_server_url(path, url) for url in (*named, *values.get("servers", ()))))
    if not servers:
        raise broken(
            path,
            "it names no server",
            'write server-url = "https://host:port", or servers = [...] for several',
            check="no-server",
        )
    return servers


def _server_url(path: Path, url: object) -> str:
    if not isinstance(url, str):
        raise broken(path, "servers must be a list of strings", "mend the line")
    try:
        parts = urlsplit(url)
        sound = parts.scheme == "https" and parts.hostname and parts.port != 0 and not (parts.query or parts.fragment)
    except ValueError:
        sound = False
    if not sound:
        raise broken(
            path, "server-url must look like https://host:port, and so must what servers lists", "mend the line"
        )
    return url.rstrip("/")


def progress_seconds(path: Path, values: Mapping[str, Any]) -> float:
    """How long a rank may make no step; 0 for any time."""
    seconds: float = values.get("progress-seconds", PROGRESS_SECONDS)
    if not 0 <= seconds < math.inf:
        raise broken(path, "progress-seconds must not be negative; 0 stands for any time", "mend the line")
    return seconds


def node_config(path: Path, values: Mapping[str, object]) -> Mapping[str, NodeValue]:
    """The values that the owner gives the app."""
    checked: dict[str, NodeValue] = {}
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str):
            raise broken(path, f"node-config.{key} must be a number, a string, true or false", "mend the line")
        checked[key] = value
    return MappingProxyType(checked)


def check_tls(certificate: Path, key: Path) -> None:
    """Refuse a key that is not the certificate's."""
    if read_certificate(certificate).public_key() != read_private_key(key).public_key():
        raise broken(key, f"not the key of the certificate {certificate.name}", check="other-key")


def token_hash(path: Path) -> bytes:
    """The SHA-256 of the operator's token."""
    text = read_text(path).strip()
    if not _SHA256.fullmatch(text):
        raise broken(path, "not a SHA-256 in lower-case hexadecimal digits")
    return bytes.fromhex(text)


def bearer_token(path: Path) -> str:
    """The operator's token."""
    if not path.exists():
        what = "copy it from the federation's operator, sign in with `fedcore login`, or set the variable FEDCORE_TOKEN"
        raise broken(path, "there is no token", what, check="no-token")
    return _word(path, "not a bearer token")


def session_of(path: Path) -> str:
    """The session that `fedcore login` began; "" if there is none."""
    return _word(path, "not a session", "sign in again with `fedcore login`") if path.exists() else ""


def _word(path: Path, reason: str, remedy: str = REMEDY) -> str:
    """A secret without blanks, so that it can stand in a header (RFC 6750, 2.1)."""
    try:
        word = read_secret(path).decode("ascii").strip()
    except UnicodeDecodeError:
        word = ""
    if not word or not word.isprintable() or " " in word or ";" in word:
        raise broken(path, reason, remedy)
    return word
