"""When a server counts as silent: one rule for agents, their watch for the leader, and the operator's commands.

A server answers at once, or holds a request for as long as that allows. One that says nothing for longer is frozen,
or the line is cut; the next address of the federation is asked.
"""

from __future__ import annotations

from typing import Final

CONNECT_SECONDS: Final = 4.0
"""For a socket to connect, and again for its handshake, if there are other addresses."""
ONLY_CONNECT_SECONDS: Final = 10.0
"""The same for the only address: nobody else could do better."""
ANSWER_SECONDS: Final = 8.0
"""For an answer to begin, and for each further piece of it, beyond what the server may hold the request."""
PROBE_SECONDS: Final = 3.0
"""For the answer to a heartbeat, and to the question whether a server leads: no server needs long for those."""


def connect_seconds(addresses: int) -> float:
    """How long a federation with so many addresses is given to connect."""
    return CONNECT_SECONDS if addresses > 1 else ONLY_CONNECT_SECONDS
