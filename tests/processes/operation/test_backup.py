"""The commands of docs/howto/operating.md, as they are written there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from support.deployment import Deployment, fedcore, wait_until

from fedcore.state import ModelState

DOCUMENT = Path(__file__).parents[3] / "docs" / "howto" / "operating.md"


def do(command: str, folder: Path) -> None:
    """The commands of the page among which this one is."""
    page = DOCUMENT.read_text(encoding="utf-8")
    [block] = [text for text in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) if command in text]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["sh", "-ec", block], cwd=folder, check=True, env={**os.environ, "PATH": path})


def restore(folder: Path) -> None:
    """Put the backup back; the server does not run."""
    do("cp -a backup/server.sqlite3", folder)


def make_backup(made: Deployment, folder: Path) -> None:
    """While the server runs."""
    (folder / "fed").symlink_to(made.federation.folder)
    do("import sqlite3", folder)


def test_what_a_killed_server_left_is_not_in_the_restored_database(tmp_path: Path) -> None:
    """Its log has the writes since the backup."""
    with Deployment.open(tmp_path, clients=2) as made:
        made.start_server()
        make_backup(made, tmp_path)
        operator = ("--operator", made.federation.operator)
        begun = fedcore("run", made.app, *operator, "--detach", mark=made.mark)
        assert begun.returncode == 0, begun.stderr
        made.kill("server")
        restore(tmp_path)
        made.start_server()
        listed = fedcore("runs", "list", *operator, "--json", mark=made.mark)
        assert json.loads(listed.stdout)["runs"] == []


def test_a_run_that_was_open_in_the_backup_goes_on(tmp_path: Path) -> None:
    with Deployment.open(tmp_path, clients=3, allow_plain=True) as made:
        made.start()
        settings = {"min-clients": 3, "aggregation": "plain", "max-attempts": 2}
        run = made.submit(settings=settings, gated=True, num_server_rounds=4)
        run.wait_for("exchange")
        make_backup(made, tmp_path)
        run.go_on()
        run.wait_for("exchange", server_round=3)
        made.kill("server")
        wait_until("the ServerApp to end with its server", lambda: not made.server_apps())
        restore(tmp_path)
        made.start_server()
        done = run.finish()
        assert done.status == 0, done.stderr
        assert made.log("server").count("exchange-failed") == 1, "the one that the clients had gone beyond"


def test_a_backup_that_was_made_meanwhile_is_restored(tmp_path: Path) -> None:
    with Deployment.open(tmp_path, clients=2) as made:
        made.start()
        first = made.submit(settings={"min-clients": 2}, num_server_rounds=1).finish()
        assert first.status == 0, first.stderr
        make_backup(made, tmp_path)
        assert made.stop("server") == 0
        restore(tmp_path)
        upgraded = fedcore("server", "upgrade", "--federation", made.federation.folder, mark=made.mark)
        assert upgraded.returncode == 0, upgraded.stderr
        made.start_server()
        run = first.summary["run"]
        model = tmp_path / "again.safetensors"
        operator = made.federation.operator
        shown = fedcore("runs", "model", run, "--operator", operator, "--out", model, mark=made.mark)
        assert shown.returncode == 0, shown.stderr
        before, after = first.arrays(), ModelState.open(model)
        assert all(np.array_equal(before[name], after[name]) for name in before)
        again = made.submit(settings={"min-clients": 2}, num_server_rounds=1).finish()
        assert again.status == 0, again.stderr


def test_an_older_backup_burns_no_open_run_and_the_newest_one_brings_it_to_its_end(tmp_path: Path) -> None:
    """Clients that know more sums say so and count as absent; they come back by themselves."""
    with Deployment.open(tmp_path, clients=3) as made:
        made.start()
        run = made.submit(settings={"min-clients": 3, "max-attempts": 2}, gated=True, num_server_rounds=4)
        run.wait_for("exchange")
        make_backup(made, tmp_path)
        run.go_on()
        run.wait_for("exchange", server_round=3)
        made.kill("server")
        wait_until("the ServerApp to end with its server", lambda: not made.server_apps())
        data = made.federation.folder / "server" / "data"
        shutil.copytree(data, tmp_path / "newest")
        restore(tmp_path)
        made.start_server()
        for name in made.federation.client_names():
            made.wait_for_log(name, "transcript-fork")
            made.wait_for_log("server", f"{name} cannot take part")
        assert "finished" not in made.log("server"), "it waits"
        assert made.stop("server") == 0
        shutil.rmtree(data)
        (tmp_path / "newest").rename(data)
        made.start_server()
        done = run.finish()
        assert done.status == 0, done.stderr
