"""What counts as load of the machine: the work of others, not that of our own processes."""

from __future__ import annotations

import subprocess
import sys

from client_app.exchange.eligibility import MachineMonitor, processor_seconds
from fedcore.federation.eligibility import EligibilityRules

BURN = "import sys, time\nwhile time.process_time() < 0.6: pass\nprint(flush=True)\nsys.stdin.read()"


def test_our_own_processes_do_not_count_as_load() -> None:
    """A child works for 0.6 s; only a reader that takes it for a stranger's sees these as load.

    Both look at the machine at the same two moments, however long it takes to ask them.
    """
    rules = EligibilityRules(idle_only=True)
    before = now = processor_seconds()
    ours = MachineMonitor(rules, all_seconds=lambda: now)
    everything = MachineMonitor(rules, all_seconds=lambda: now, own_seconds=lambda: 0.0)
    with subprocess.Popen([sys.executable, "-S", "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        now = processor_seconds()
        others, both = ours.read().load, everything.read().load
    assert 0.0 <= others <= both <= 1.0
    assert (both - others) * (now[1] - before[1]) > 0.4
