"""What TAB offers for a run: ids that the server lists, within a second, or those that it listed before.

A completion cannot wait for the packages that the operator's client is made of, so this reads the little that it needs
of the kit by itself. The server's certificate is checked all the same.
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
PATIENCE: Final = 0.7
"""Seconds; with the start of the interpreter it stays below one."""
_MOST: Final = 100


def runs(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """The newest runs, and `last`; nothing at all where no server was ever heard."""
    folder = Path(str(ctx.params.get("operator") or os.environ.get("FEDCORE_OPERATOR") or "federation/operator"))
    found = _seen(folder, younger=FRESH_SECONDS)
    if found is None:
        found = _asked(folder) or _seen(folder, younger=float("inf")) or []
    offers = [("last", "the newest run"), *found] if found else []
    return [(word, what) for word, what in offers if word.startswith(incomplete)]


def _seen(folder: Path, *, younger: float) -> list[Offer] | None:
    path = folder / CACHE_FILE
    try:
        if time.time() - path.stat().st_mtime > younger:
            return None
        return [(str(run), str(what)) for run, what in json.loads(path.read_bytes())]
    except (OSError, ValueError, TypeError):
        return None


def _asked(folder: Path) -> list[Offer]:
    """What the server lists, if it does in time; kept for the next TAB."""
    found: list[Offer] = []
    asking = Thread(target=lambda: found.extend(list_runs(folder)), daemon=True)
    asking.start()
    asking.join(PATIENCE)
    answer = list(found)
    if answer:
        _keep(folder, answer)
    return answer


def list_runs(folder: Path) -> list[Offer]:
    """What the server lists now; empty where it cannot be asked."""
    try:
        kit = tomllib.loads((folder / "operator.toml").read_text(encoding="utf-8"))
        token = (folder / "token").read_text(encoding="ascii").strip()
        addresses = [*([kit["server-url"]] if "server-url" in kit else []), *kit.get("servers", [])]
        named = kit.get("tls-ca", "ca.crt")
        trusted = ssl.create_default_context(cafile=None if named == "system" else str(folder / named))
        asked = urllib.request.Request(  # noqa: S310 - the address of the kit, and only https
            f"{addresses[0]}/v1/runs?limit={_MOST}", headers={"Authorization": f"Bearer {token}"}
        )
        if asked.type != "https":
            return []
        with urllib.request.urlopen(asked, timeout=PATIENCE, context=trusted) as answer:  # noqa: S310
            listed: list[dict[str, Any]] = json.load(answer)["runs"]
        return [(str(info["run"]), f"{info['status']}, {info['app']}") for info in listed]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return []  # a TAB that finds nothing is no error


def _keep(folder: Path, found: list[Offer]) -> None:
    draft = folder / f"{CACHE_FILE}.{os.getpid()}.part"
    try:
        draft.write_text(json.dumps(found), encoding="utf-8")
        draft.chmod(0o600)
        draft.replace(folder / CACHE_FILE)
    except OSError:
        draft.unlink(missing_ok=True)
