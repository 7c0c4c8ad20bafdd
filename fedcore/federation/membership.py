"""A client's view of its federation's rosters: verifies each, keeps the newest, and changes its key with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fedcore.errors import ProtocolViolation
from fedcore.federation.chain import successors
from fedcore.federation.files import replace_file
from fedcore.federation.kits.identity import next_identity, public_bytes, use_next
from fedcore.federation.kits.kits import ROSTER_FILE, ClientKit
from fedcore.federation.roster import OTHER_KEY, REVOKED, Roster
from fedcore.secagg import Signer


def follow(kit: ClientKit, texts: Sequence[str], *, note: Callable[[Roster], None] = lambda roster: None) -> ClientKit:
    """The kit with the last of the rosters that a peer says follow the one that it knows.

    Raises ProtocolViolation under a fixed name for what is no successor, or has no place for this client any more, and
    EnvironmentFailure if the kit cannot be written; the kit is then as it was.

    Args:
        note: told of each that is verified, before the kit changes. roster.json is replaced, durably, before anything
            is done with the new roster, so that no restart goes back to the old one. If it names the key that waits
            in this kit, that one is the client's from then on.
    """
    chain = successors(kit.roster, texts, kit.authority)
    if not chain:
        return kit
    for roster in chain:
        note(roster)
    newest = chain[-1]
    identity = _identity(kit, newest)
    replace_file(kit.folder / ROSTER_FILE, newest.to_json())
    if identity is not kit.identity:
        use_next(kit.folder)
    return replace(kit, roster=newest, identity=identity)


def _identity(kit: ClientKit, roster: Roster) -> Signer:
    """The key of this client's that the roster names; what the file says matters less than what is used now."""
    key = roster.keys.get(kit.client_id)
    if key is None:
        raise ProtocolViolation(REVOKED, f"roster {roster.version} revokes this client, {kit.name}")
    if key == public_bytes(kit.identity):
        return kit.identity
    following = next_identity(kit.folder)
    if following is None or public_bytes(following) != key:
        raise ProtocolViolation(OTHER_KEY, f"roster {roster.version} has another key for {kit.name} than its kit")
    return following
