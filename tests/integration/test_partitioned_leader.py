"""A leader that is cut off and reaches its database: the run goes on with the other server, by the same updates."""

from __future__ import annotations

import pytest

from benchmarks.partition import KINDS, federation, lacks
from client_app.http.silence import ANSWER_SECONDS
from client_app.http.transport import LONG_POLL_SECONDS

MOST_SECONDS = LONG_POLL_SECONDS + ANSWER_SECONDS
"""So long waits a client that notices nothing."""
TRIES = 3
"""One may be slow on a busy machine; with clients that notice nothing all are."""


@pytest.mark.skipif(bool(lacks()), reason=lacks())
def test_a_run_goes_on_with_the_same_bits_under_the_other_server() -> None:
    with federation() as replicas:
        for kind in KINDS:
            tries = []
            while not any(done.silence < MOST_SECONDS for done in tries):
                assert len(tries) < TRIES, tries
                tries.append(done := replicas.partition(kind))
                assert done.steps == 0, done
