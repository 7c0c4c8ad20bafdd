"""Implementation of `fedcore client offers` and `fedcore client approve`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from client_app.commands.app_difference import AppDifference, difference, unified
from client_app.records.offers import Approval, Offers
from client_app.records.plan_use import plan_lines
from fedcore.errors import AppError, ConfigurationError
from fedcore.federation import ClientKit
from fedcore.flower.app import AppBundle, FlowerApp


def list_offers(kit: Path, state_dir: Path | None, *, diff: bool, as_json: bool) -> Iterator[str]:
    """List the offers, and how each differs from the installed app; raises ConfigurationError."""
    loaded = ClientKit.load(kit)
    state = state_dir or loaded.folder / "state"
    offers = Offers(state)
    installed, approval = offers.installed(), offers.approval()
    others = [sha256 for sha256 in offers.hashes() if installed is None or sha256 != installed.app]
    if as_json:
        entries = [{"app": sha256, **both_bundles(offers, state, sha256)[2].to_json()} for sha256 in others]
        approved = approval.app if approval is not None else None
        yield json.dumps({"installed": installed.app if installed else None, "approved": approved, "offers": entries})
        return
    if not others:
        yield "no other app is offered"
    for sha256 in others:
        mark = (
            "  approved, the agent switches to it between two exchanges" if approval and approval.app == sha256 else ""
        )
        yield f"{sha256}{mark}"
        yield f"  files    {offers.folder / sha256}"
        before, after, changes = both_bundles(offers, state, sha256)
        yield from (f"  {line}" for line in changes.lines())
        yield from (f"  {line}" for line in plan_lines(FlowerApp.load(offers.folder / sha256)))
        if diff:
            yield from unified(before, after)
        yield f"  approve  fedcore client approve {sha256} --kit {kit}"


def approve(kit: Path, state_dir: Path | None, sha256: str) -> Approval:
    """Agree to an offer by its hash; raises ConfigurationError, AppError."""
    loaded = ClientKit.load(kit)
    pinned = loaded.policy.app_sha256
    if pinned is not None and pinned != sha256:
        raise AppError(f"policy.toml agrees to the app {pinned[:12]}… only; change app-sha256 there first")
    return Offers(state_dir or loaded.folder / "state").approve(sha256, at=time.time())


def approved_text(approval: Approval) -> str:
    """The text for the owner."""
    return (
        f"approved: {approval.app}\nA running agent switches to it between two exchanges; one that starts with --app "
        f"{approval.instead_of[:12]}… runs it instead."
    )


def both_bundles(offers: Offers, state: Path, sha256: str) -> tuple[AppBundle, AppBundle, AppDifference]:
    """The installed app, the offered one, and their difference; raises ConfigurationError, AppError."""
    installed = offers.installed()
    if installed is None:
        raise ConfigurationError(f"the agent has not run yet with the state folder {state}; name it with --state-dir")
    before, after = AppBundle.from_copy(state / "apps" / installed.app), offers.bundle(sha256)
    return before, after, difference(before, after, folders=(state / "apps" / installed.app, offers.folder / sha256))
