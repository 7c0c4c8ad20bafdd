"""The authority's key, for what no honest authority would sign."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.federation import Roster
from fedcore.federation.files import read_identity
from fedcore.federation.kits.kits import AUTHORITY_KEY, AUTHORITY_SETTINGS, kit_folder


def authority_key(folder: Path) -> Ed25519PrivateKey:
    """The private key in an authority's folder, or in the folder of a federation around it."""
    return read_identity(kit_folder(folder, AUTHORITY_SETTINGS, "authority") / AUTHORITY_KEY)


def signed(roster: Roster, authority: Ed25519PrivateKey) -> Roster:
    """The roster with the signature of an authority that checks nothing."""
    return replace(roster, signature=authority.sign(roster.canonical()))
