"""A process names its own threads as CUDA does when it is initialised, and still writes nothing else in /proc."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedcore.system.sandbox import landlock

pytestmark = pytest.mark.skipif(landlock.abi() < 1, reason="the kernel has no Landlock")

NAMES = """
import ctypes, os, sys, threading
from pathlib import Path
from fedcore.system.sandbox import landlock

landlock.restrict(read=[Path("/")], write=[], tcp=False, threads=sys.argv[1] == "named")
end = threading.Event()
thread = threading.Thread(target=end.wait)
thread.start()
for number in range(1000):  # names and folders of /proc that nobody uses are forgotten
    os.listdir("/proc/self/task")
print(ctypes.CDLL(None).pthread_setname_np(ctypes.c_ulong(thread.ident), b"cuda"))
end.set()
for path in ("/proc/self/oom_score_adj", "/proc/self/comm", f"/proc/{os.getppid()}/oom_score_adj"):
    try:
        os.close(os.open(path, os.O_WRONLY))
    except PermissionError:
        print("refused")
"""


@pytest.mark.parametrize(("kind", "refused"), [("named", False), ("unnamed", True)])
def test_only_own_threads_are_named(kind: str, refused: bool) -> None:
    ended = subprocess.run([sys.executable, "-c", NAMES, kind], capture_output=True, text=True, check=True)
    status, *others = ended.stdout.split()
    assert (status != "0") == refused
    assert others == ["refused"] * 3
