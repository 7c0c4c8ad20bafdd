"""What becomes of a process in a sandbox that has namespaces, or runs as another user, seen from outside."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.deployment import wait_until

from fedcore.system.sandbox.namespaces import Need, kind_of
from fedcore.system.sandbox.sandbox import Rules, Sandbox, clean_environment

APP = """
import json, os, signal, subprocess, sys, time
from pathlib import Path

def seen():
    return {
        "uid": os.getuid(),
        "groups": sorted({os.getgid(), *os.getgroups()}),
        "data": Path(sys.argv[2]).read_text(),
        "programs": len([name for name in os.listdir("/proc") if name.isdigit()]),
    }

match sys.argv[1]:
    case "status":
        sys.exit(7)
    case "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    case "see":
        Path("written").write_text("by the app")
        print(json.dumps(seen()), flush=True)
    case "see-in-a-program":
        sys.exit(subprocess.run([sys.executable, __file__, "see", sys.argv[2]]).returncode)
    case "leave":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[2]], start_new_session=True)
        print("left", flush=True)
        time.sleep(600)
    case "wait":
        print("waiting", flush=True)
        time.sleep(600)
"""

pytestmark = pytest.mark.skipif(kind_of(Need(alone=True)) != "all", reason="the machine does not allow namespaces")


REFUSED = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all "$@"'
WITHOUT = ("unshare", "--user", "--map-root-user", "sh", "-c", REFUSED, "sh")
"""Starts a program as a container does that takes all capabilities and forbids user namespaces."""


def begin(folder: Path, *words: str, rules: Rules | None = None, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """The app in a sandbox as the agent starts it; `before` is what starts it."""
    rules = rules or Rules()
    work, data = folder / "work", folder / "data"
    for place in (work, data):
        place.mkdir(mode=0o700, exist_ok=True)
    (folder / "data" / "patients").write_text("records")
    (folder / "data" / "patients").chmod(0o600)
    (data / "started_app.py").write_text(APP)
    sandbox = Sandbox(read=(data,), write=(work,), account=rules.account)
    command = [*sandbox.command("fedcore")[:-1], "started_app", *words]
    environment = {**clean_environment(rules, work), "PYTHONPATH": str(data)}
    return subprocess.Popen(
        [*before, *command, str(data / "patients")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=work,
        env=environment,
        start_new_session=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize(("what", "status"), [("status", 7), ("signal", -signal.SIGKILL)])
def test_its_end_is_the_apps(tmp_path: Path, what: str, status: int) -> None:
    with begin(tmp_path, what) as process:
        assert process.wait() == status


def test_a_signal_to_its_group_ends_it(tmp_path: Path) -> None:
    with begin(tmp_path, "wait") as process:
        assert said(process) == "waiting"
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def with_program(pid: int, folder: Path) -> list[psutil.Process]:
    """All processes below one, if the program in the folder is among them; one that begins or ends has no words."""
    below = psutil.Process(pid).children(recursive=True)
    for child in below:
        with contextlib.suppress(psutil.Error):
            words = child.cmdline()
            if words[1:2] == ["-c"] and str(folder) in words[-1]:
                return below
    return []


@pytest.mark.parametrize("group", [True, False])
def test_nothing_outlives_it(tmp_path: Path, group: bool) -> None:
    """Not even a program in a session of its own, which no signal to the group reaches."""
    with begin(tmp_path, "leave") as process:
        assert said(process) == "left"
        below = wait_until("the program", lambda: with_program(process.pid, tmp_path))
        (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
        wait_until("the end of all", lambda: not any(child.is_running() for child in below))


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
def test_a_machine_that_refuses_namespaces_is_warned_of_and_runs_the_app(tmp_path: Path) -> None:
    asking = "from fedcore.system.sandbox.sandbox import *; print(describe(Rules(), network=False)[1])"
    done = subprocess.run([*WITHOUT, sys.executable, "-c", asking], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    with begin(tmp_path, "see", before=WITHOUT) as process:
        seen = json.loads(said(process))
        assert process.wait() == 0
    assert seen["data"] == "records"
    assert seen["programs"] > 5, "it sees the machine's"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("how", ["see", "see-in-a-program"])
def test_it_runs_as_another_user_and_reads_what_only_root_may(tmp_path: Path, how: str) -> None:
    rules = Rules(user="nobody")
    account = rules.account
    assert account is not None
    with begin(tmp_path, how, rules=rules) as process:
        seen = json.loads(said(process))
        assert process.wait() == 0
    programs = seen.pop("programs")
    assert seen == {"uid": account.user, "groups": sorted(account.groups), "data": "records"}
    assert programs < 5
    assert (tmp_path / "work" / "written").stat().st_uid == account.user
    assert (tmp_path / "data" / "patients").stat().st_uid == 0
