"""Approved apps of a server: the command `fedcore server approve`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fedcore.errors import ConfigurationError
from fedcore.federation import ServerKit
from fedcore.federation.approval import APPROVED_FILE, ApprovedApps
from fedcore.flower.app import AppBundle, FlowerApp

_SHA256 = re.compile(r"[0-9a-f]{64}")


def change(federation: Path, app: str, *, remove: bool) -> list[str]:
    """Approve an app, or remove it from the list; lines to print. Raises FedcoreError."""
    kit = ServerKit.load(federation)
    approved = ApprovedApps(kit.folder / APPROVED_FILE)
    if remove:
        sha256 = app if _SHA256.fullmatch(app) else AppBundle.from_folder(Path(app)).sha256
        name = approved.remove(sha256)
        lines = [f"removed {name}", f"  sha-256  {sha256}", "  a run that is open goes on; no other starts"]
    elif _SHA256.fullmatch(app):
        raise ConfigurationError("name the app's folder, not its hash: to approve an app you need its code")
    else:
        name, sha256 = FlowerApp.load(Path(app)).name, AppBundle.from_folder(Path(app)).sha256
        approved.approve(sha256, name)
        lines = [f"approved {name}: holders of the operator's token may run it on this server", f"  sha-256  {sha256}"]
    return lines + _any(kit)


def listed(federation: Path) -> list[str]:
    """The approved apps, one a line."""
    kit = ServerKit.load(federation)
    apps = ApprovedApps(kit.folder / APPROVED_FILE).load()
    return [f"{sha256}  {name}" for sha256, name in apps.items()] + _any(kit)


def listed_json(federation: Path) -> str:
    """The approved apps as JSON; `any` says whether every app may run, approved or not."""
    kit = ServerKit.load(federation)
    apps = ApprovedApps(kit.folder / APPROVED_FILE).load()
    return json.dumps({"apps": dict(apps), "any": kit.approved_apps is None}, indent=2)


def _any(kit: ServerKit) -> list[str]:
    if kit.approved_apps is not None:
        return []
    return ['note: server.toml has approve-apps = "any", so every app runs; "listed" makes the list count']
