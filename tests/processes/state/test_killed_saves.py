"""The client's own model on a client's disk is whole, whenever its process is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from support.own_models import RECORD, loaded, state_of

from fedcore.state import OwnModelFolder

DOOMED = """
# Saves into each folder that it is told of, in a fork of its own, which dies before the operation of that number.
import os, signal, sys
from pathlib import Path
import numpy as np
from fedcore.state import OwnModelRecord, OwnModelFolder, ModelState

calls = fatal = 0

def count(event, arguments):
    global calls
    if event in ("open", "os.rename", "os.remove", "os.mkdir", "tempfile.mkstemp"):
        calls += 1
        if calls == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

state = ModelState.from_arrays({"body.weight": np.full((2, 3), 2.0, np.float32), "head": np.zeros(2, np.float32)})
record = OwnModelRecord(run="run-1", server_round=4, app_sha256="ab" * 32, personal=("head",), metrics={})
for line in sys.stdin:
    folder, number = line.split()
    pid = os.fork()
    if pid == 0:
        fatal = int(number)
        sys.addaudithook(count)
        OwnModelFolder(Path(folder)).save(state, record)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def test_killed_at_any_moment_it_holds_the_old_model_or_the_new_one(tmp_path: Path) -> None:
    """SIGKILL before each operation on the folder in turn, until the save gets through."""
    seen, fatal, status = set(), 0, -9
    with subprocess.Popen(
        [sys.executable, "-c", DOOMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as saving:
        assert saving.stdin is not None
        assert saving.stdout is not None
        while status != 0:
            fatal += 1
            assert fatal < 50
            store = OwnModelFolder(tmp_path / str(fatal))
            store.save(state_of(1.0), RECORD)
            saving.stdin.write(f"{store.folder} {fatal}\n")
            status = int(saving.stdout.readline())
            assert status in (0, -signal.SIGKILL)
            seen.add(loaded(store))
            store.save(state_of(3.0), replace(RECORD, server_round=5))
            assert loaded(store) == (3.0, 5)
            assert len(list(store.folder.iterdir())) == 2
    assert seen == {(1.0, 3), (2.0, 4)}
    assert fatal > 6
