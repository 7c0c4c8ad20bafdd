"""Implementation of `fedcore client enroll`."""

from __future__ import annotations

import json
from pathlib import Path

from fedcore.federation import ClientKit
from fedcore.federation.enrolment import accept, ask, rotate
from fedcore.federation.fingerprint import fingerprint
from fedcore.federation.kits.site_node import site_values
from fedcore.flower.app import FlowerApp
from fedcore.flower.node.keys import NodeKeys, checked_node
from fedcore.monitoring.formatting import the_federation


def request(folder: Path, name: str, as_json: bool, *, key: str = "") -> str:
    """Ask to join under `name`, or for a new key if it is empty; returns the text for the owner.

    `key` is the URI of a key in a token, "" for one in a file.
    """
    path, made = ask(folder, name, key=key) if name else rotate(folder, key=key)
    code = fingerprint(made.public_key)
    if as_json:
        return json.dumps({"request": str(path), "name": made.name, "fingerprint": code})
    where = "is in the token, and stays there" if key else "was made here, and stays here"
    about = f"its identity key {where}" if name else "its new key waits here for the roster"
    return (
        f"{made.name}: {about}\n"
        f"  request      {path}    send it to the federation's authority\n"
        f"  fingerprint  {code}    tell it over a channel that both trust"
    )


def complete(
    folder: Path, admission: Path, authority_fingerprint: str, as_json: bool, *, app: Path | None, node_config: str
) -> str:
    """Accept an admission; returns the text for the owner. With an app, client.toml says what it asks for."""
    keys = FlowerApp.load(app).node_keys if app is not None else {}
    values = site_values(keys, None, node_config)
    if values:
        checked_node(keys, values, folder=Path.cwd())
    kit = accept(folder, admission, authority_fingerprint, node_config=values, node_keys=keys)
    if as_json:
        return json.dumps(
            {
                "kit": str(kit.folder),
                "federation": kit.federation,
                "client": kit.client_id,
                "name": kit.name,
                "roster": kit.roster.version,
            }
        )
    return (
        f"{kit.name} is client {kit.client_id} of {the_federation(kit.federation)} (roster {kit.roster.version})\n"
        f"  policy  {kit.folder}/policy.toml    what this client insists on; read it\n"
        f"{_to_fill_in(kit, keys)}"
        f"  start   fedcore client --kit {kit.folder} --app {app or 'APP_DIR'}"
    )


def _to_fill_in(kit: ClientKit, keys: NodeKeys) -> str:
    """A line about what client.toml lacks; "" if it lacks nothing."""
    lacking = [name for name, key in keys.items() if key.is_lacking(kit.node_config)]
    return f"  data    {kit.folder}/client.toml    fill in {', '.join(lacking)}\n" if lacking else ""
