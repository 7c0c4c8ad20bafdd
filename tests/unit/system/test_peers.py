"""Which of several failures the others come from."""

from __future__ import annotations

import traceback

import pytest

from fedcore.system.peers import PeerLost, first_cause, tells_of_lost_peer


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:1] Connection closed by peer"), True),
        (type("DistNetworkError", (RuntimeError,), {})("no more"), True),
        (PeerLost("silent"), True),
        (ValueError("Connection closed by peer"), False),
    ],
)
def test_what_tells_of_a_lost_peer(error: Exception, found: bool) -> None:
    assert tells_of_lost_peer("".join(traceback.format_exception_only(error))) is found


def test_the_first_failure_that_comes_from_no_other() -> None:
    def lost(failure: str) -> bool:
        return failure.startswith("lost")

    arriving = iter(["lost a", "killed", "raised"])
    assert first_cause(arriving, lost) == "killed"
    assert next(arriving) == "raised", "nobody waits for more than is needed"
    assert first_cause(["lost a", "lost b"], lost) == "lost a"
