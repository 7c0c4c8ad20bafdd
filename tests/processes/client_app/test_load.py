"""What counts as load of the machine: the work of others, not that of our own processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from client_app.eligibility import Machine, _processor_seconds
from fedcore.federation.eligibility import EligibilityRules

BURN = "import sys, time\nwhile time.process_time() < 0.6: pass\nprint(flush=True)\nsys.stdin.read()"


def test_our_own_processes_do_not_count_as_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child works for 0.6 s; only a reader that takes it for a stranger's sees these as load.

    Both look at the machine at the same two moments, however long it takes to ask them.
    """
    rules = EligibilityRules(idle_only=True)
    before = _processor_seconds()
    monkeypatch.setattr("client_app.eligibility._processor_seconds", lambda: before)
    ours, everything = Machine(rules), Machine(rules)
    with subprocess.Popen([sys.executable, "-S", "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        after = _processor_seconds()
        monkeypatch.setattr("client_app.eligibility._processor_seconds", lambda: after)
        others = ours.read().load
        monkeypatch.setattr("client_app.eligibility._own_seconds", lambda: 0.0)
        both = everything.read().load
    assert 0.0 <= others <= both <= 1.0
    assert (both - others) * (after[1] - before[1]) > 0.4
