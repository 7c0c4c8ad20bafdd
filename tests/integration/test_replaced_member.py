"""One site leaves, another comes, and an app that asks for statistics goes on from the model that has them.

It asks again only once its owners say so, those of the new site too, since the sums of statistics could reveal one.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
from support.deployment import Deployment, Ended
from typer.testing import CliRunner

from fedcore.cli.main import app
from fedcore.state import ModelState

SITES = {"client-1": "a", "client-2": "b", "client-3": "c", "site-d": "d"}
STAY = ["client-1", "client-2"]


def tables(folder: Path) -> Path:
    """A file for each site; gives their folder."""
    folder.mkdir()
    for seed, name in enumerate(SITES.values()):
        draw = random.Random(seed)
        rows = [(draw.randint(20, 80), round(draw.random(), 3)) for _ in range(40)]
        lines = [f"{age},{dose},{'yes' if age / 80 + dose > 1.2 else 'no'}" for age, dose in rows]
        (folder / f"{name}.csv").write_text("\n".join(["age,dose,sick", *lines]) + "\n", encoding="utf-8")
    return folder


def command(*words: str | Path, answer: str = "") -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], input=answer)
    assert done.exit_code == 0, done.output
    return done.stdout


def allow_differencing(kit: Path, *, allowed: bool) -> None:
    """The line of policy.toml, by its owner."""
    policy = kit / "policy.toml"
    lines = {value: f"allow-differencing = {str(value).lower()}" for value in (True, False)}
    text = policy.read_text(encoding="utf-8")
    assert lines[not allowed] in text
    policy.write_text(text.replace(lines[not allowed], lines[allowed]), encoding="utf-8")


def replace_client_3(federation: Deployment) -> Path:
    """As docs/howto/joining.md has it: client-3 is revoked, site-d joins with a key of its own; gives its kit."""
    authority, kit = federation.federation.folder, federation.folder / "kit-d"
    federation.stop("client-3")
    command("federation", "revoke", "client-3", "--federation", authority, "--yes")
    command("client", "enroll", kit, "--name", "site-d")
    command("federation", "approve", kit / "site-d.request.json", "--federation", authority, answer="y\n")
    shown = json.loads(command("federation", "show", "--federation", authority, "--json"))
    accept = ("--accept", kit / "site-d.admission.json", "--authority-fingerprint", shown["authority_fingerprint"])
    command("client", "enroll", kit, *accept)
    command("federation", "publish", "--federation", authority, "--operator", federation.federation.operator)
    (kit / "policy.toml").write_text((federation.kit("client-1") / "policy.toml").read_text(), encoding="utf-8")
    return kit


def test_a_member_is_replaced_and_a_csv_app_goes_on(tmp_path: Path) -> None:
    csv = tables(tmp_path / "csv")
    command("new", tmp_path / "clinic", "--csv", csv / "a.csv", "--target", "sick")
    with Deployment.open(tmp_path, clients=3) as federation:
        federation.app = tmp_path / "clinic"

        def start(*names: str) -> None:
            said = {name: len(federation.log(name)) for name in names}
            for name in names:
                federation.start_client(name, "--node-config", f'csv="{csv / SITES[name]}.csv"')
            for name in names:
                federation.wait_for_log(name, "connected", after=said[name])

        def run(initial: Path | None = None) -> Ended:
            settings = {"min-clients": 3, "max-attempts": 1}
            return federation.submit(settings=settings, initial=initial, num_server_rounds=1).finish()

        for name in federation.federation.client_names():
            allow_differencing(federation.kit(name), allowed=False)  # as owners have it who are not one and the same
        federation.start_server()
        start(*STAY, "client-3")
        first = run()
        assert first.status == 0, first.stderr

        kit = replace_client_3(federation)
        federation.start_node("site-d", "--kit", kit, "--node-config", f'csv="{csv / "d.csv"}"')
        federation.wait_for_log("site-d", "connected")
        refused = run()
        assert refused.status == 5
        later = run(first.model)
        assert later.status == 0, later.stderr
        assert later.trained() == [[*STAY, "site-d"]]
        before, after = (ModelState.open(one.model) for one in (first, later))
        for name in ("0.mean", "0.std"):
            np.testing.assert_array_equal(before[name], after[name], err_msg="the scale of the sites before")

        reason = refused.summary["reason"]
        assert "differencing" in reason
        assert "left: client-3; new: site-d" in reason
        assert "allow-differencing = true" in reason
        for name in (*STAY, "site-d"):
            assert "allow-differencing = true" in federation.log(name), "and the owner reads it in his own log"
            federation.stop(name)
            allow_differencing(kit if name == "site-d" else federation.kit(name), allowed=True)
        start(*STAY)
        federation.start_node("site-d", "--kit", kit, "--node-config", f'csv="{csv / "d.csv"}"')
        again = run()
        assert again.status == 0, again.stderr
        assert again.trained() == [[*STAY, "site-d"]]
