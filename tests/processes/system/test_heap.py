"""A process that says so gives back what it freed, although something small lies behind it in the heap."""

import subprocess
import sys
import textwrap

import pytest

MIB = 1 << 20
_PROGRAM = textwrap.dedent("""
    import sys
    from pathlib import Path
    import numpy as np
    from fedcore.system.memory import give_memory_back

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    if sys.argv[1] == "back":
        give_memory_back()
    large = np.ones(20 << 20, np.uint8)
    del large  # glibc takes the next one of this size from the heap
    before = resident()
    large = np.ones(20 << 20, np.uint8)
    behind = [bytes(1000) for _ in range(1000)]
    del large
    print(resident() - before)
""")


def _left(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap, seen in /proc")
def test_freed_arrays_go_back() -> None:
    if _left("as it comes") < 10 * MIB:
        pytest.skip("this C library gives back what is freed by itself")
    assert _left("back") < 5 * MIB
