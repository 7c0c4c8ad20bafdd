"""All rosters of a federation from the first on, each the successor of the one before: rosters.json.

The authority keeps the chain because it signs the next one, the server because clients that were away ask it for what
they missed. A client keeps only the newest that it knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from fedcore.errors import KitError, ProtocolViolation
from fedcore.federation.files import broken, read_text
from fedcore.federation.roster import Roster

_RESTORE = "take the rosters.json of the federation's authority"


def load_chain(path: Path, authority: bytes) -> tuple[Roster, ...]:
    """Read rosters.json and verify all of it under the authority's raw Ed25519 key (32 bytes); raises KitError."""
    text = read_text(path)
    try:
        documents = json.loads(text)
        if not isinstance(documents, list) or not documents:
            raise ValueError
        chain = tuple(map(Roster.of, documents))
    except (ValueError, RecursionError):
        raise broken(path, "not a list of rosters in JSON form", _RESTORE) from None
    except KitError as error:
        raise broken(path, str(error), _RESTORE) from None
    if chain[0].version != 1:
        raise broken(path, "the first roster is missing", _RESTORE)
    try:
        for roster in chain:
            roster.verify(authority)
        for known, following in pairwise(chain):
            known.check_successor(following)
    except ProtocolViolation as error:
        raise broken(path, str(error), _RESTORE) from None
    return chain


def chain_text(chain: Iterable[Roster]) -> str:
    """The text of rosters.json."""
    return json.dumps([roster.to_plain() for roster in chain], indent=2) + "\n"


def successors(known: Roster, texts: Sequence[str], authority: bytes) -> tuple[Roster, ...]:
    """The rosters that a peer says follow `known`, in order; raises ProtocolViolation under a fixed name.

    Args:
        authority: raw Ed25519 key, 32 bytes.
    """
    following: list[Roster] = []
    for text in texts:
        roster = Roster.received(text, authority)
        (following[-1] if following else known).check_successor(roster)
        following.append(roster)
    return tuple(following)
