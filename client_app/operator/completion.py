"""Shell completion of run ids: those that the server lists within a second, or those of its last list.

A completion cannot wait for the imports of the operator's client, so this module reads the kit by itself. It checks the
server's certificate anyway.
"""

from __future__ import annotations

import json
import os
import ssl
import time
import tomllib
import urllib.request
from pathlib import Path
from threading import Thread
from typing import Any, Final

import typer

from fedcore.cli.completion import Offer

CACHE_FILE: Final = ".runs-seen.json"
FRESH_SECONDS: Final = 5.0
WAIT_SECONDS: Final = 0.7
"""Seconds; with the start of the interpreter it stays below one."""
_MOST: Final = 100


def runs(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """The newest runs, and `last`; empty if no server ever answered."""
    folder = Path(str(ctx.params.get("operator") or os.environ.get("FEDCORE_OPERATOR") or "federation/operator"))
    listed = _cached(folder, younger=FRESH_SECONDS)
    if listed is None:
        listed = _fetch(folder) or _cached(folder, younger=float("inf")) or []
    offers = [("last", "the newest run"), *listed] if listed else []
    return [(word, what) for word, what in offers if word.startswith(incomplete)]


def _cached(folder: Path, *, younger: float) -> list[Offer] | None:
    path = folder / CACHE_FILE
    try:
        if time.time() - path.stat().st_mtime > younger:
            return None
        return [(str(run), str(what)) for run, what in json.loads(path.read_bytes())]
    except (OSError, ValueError, TypeError):
        return None


def _fetch(folder: Path) -> list[Offer]:
    """The server's list, if it comes in time; cached for the next TAB."""
    listed: list[Offer] = []
    request = Thread(target=lambda: listed.extend(list_runs(folder)), daemon=True)
    request.start()
    request.join(WAIT_SECONDS)
    answer = list(listed)
    if answer:
        _save(folder, answer)
    return answer


def list_runs(folder: Path) -> list[Offer]:
    """The runs that the server lists now; empty if the request fails."""
    try:
        kit = tomllib.loads((folder / "operator.toml").read_text(encoding="utf-8"))
        token = (folder / "token").read_text(encoding="ascii").strip()
        addresses = [*([kit["server-url"]] if "server-url" in kit else []), *kit.get("servers", [])]
        named = kit.get("tls-ca", "ca.crt")
        trusted = ssl.create_default_context(cafile=None if named == "system" else str(folder / named))
        request = urllib.request.Request(  # noqa: S310 - the address of the kit, and only https
            f"{addresses[0]}/v1/runs?limit={_MOST}", headers={"Authorization": f"Bearer {token}"}
        )
        if request.type != "https":
            return []
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS, context=trusted) as answer:  # noqa: S310
            listed: list[dict[str, Any]] = json.load(answer)["runs"]
        return [(str(info["run"]), f"{info['status']}, {info['app']}") for info in listed]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return []  # a TAB that finds nothing is no error


def _save(folder: Path, offers: list[Offer]) -> None:
    draft = folder / f"{CACHE_FILE}.{os.getpid()}.part"
    try:
        draft.write_text(json.dumps(offers), encoding="utf-8")
        draft.chmod(0o600)
        draft.replace(folder / CACHE_FILE)
    except OSError:
        draft.unlink(missing_ok=True)
