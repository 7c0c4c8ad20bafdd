"""Enrolment: a client gets its kit while its private key stays on its machine.

fedcore client enroll KIT --name NAME               makes identity.key, writes NAME.request.json
fedcore federation approve NAME.request.json        the authority's side (`authority`), writes NAME.admission.json
fedcore client enroll KIT --accept NAME.admission.json --authority-fingerprint F
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedcore.errors import KitError
from fedcore.federation.files import new_folder, public_pem, replace_file
from fedcore.federation.fingerprint import check_fingerprint
from fedcore.federation.kits.identity import IDENTITY_FILE, make_identity, make_next, open_identity, public_bytes
from fedcore.federation.kits.kit_text import client_text
from fedcore.federation.kits.kits import AUTHORITY_FILE, CA_FILE, CLIENT_FILE, POLICY_FILE, ROSTER_FILE, ClientKit
from fedcore.federation.kits.policy_text import policy_text
from fedcore.federation.kits.provision import FEWEST_CLIENTS
from fedcore.federation.policy import Policy
from fedcore.federation.requests import REQUEST_SUFFIX, Admission, JoinRequest
from fedcore.federation.roster import check_name
from fedcore.flower.node.keys import NodeKeys
from fedcore.wire.base import Scalar

Randomness = Callable[[int], bytes]


def ask(folder: Path, name: str, *, key: str = "", randomness: Randomness = os.urandom) -> tuple[Path, JoinRequest]:
    """Make a client's folder with a new identity key, and the request to be admitted; returns the request's file.

    Raises KitError for a name that cannot be one and for a folder with something in it.

    Args:
        folder: of the kit, new.
        name: of the client.
        key: the URI of a key in a token, which takes the place of a key in a file; "" for a file.
        randomness: makes the key.
    """
    check_name(name, "the client name")  # before a key is made
    with new_folder(folder) as staging:
        request = JoinRequest.make(name, make_identity(staging, randomness, key))
        replace_file(staging / f"{name}{REQUEST_SUFFIX}", request.to_json())
    return folder.absolute() / f"{name}{REQUEST_SUFFIX}", request


def accept(
    folder: Path,
    admission_file: Path,
    authority_fingerprint: str,
    *,
    node_config: Mapping[str, Scalar] = MappingProxyType({}),
    node_keys: NodeKeys = MappingProxyType({}),
) -> ClientKit:
    """Complete the folder that `ask` made with what the authority sent; returns the kit, which has a stock policy.

    Raises KitError if the authority is another one, if the admission is for another key, or if the kit is
    complete already; nothing is changed then.

    Args:
        folder: of the kit.
        admission_file: what the authority sent.
        authority_fingerprint: the authority's, from its owner.
        node_config: where the site's data are, and what else its app gets.
        node_keys: what the site's app asks for, which client.toml then says.
    """
    folder = folder.absolute()
    if not (folder / IDENTITY_FILE).exists():
        raise KitError(
            f"{folder} has no {IDENTITY_FILE}; make one with `fedcore client enroll {folder} --name NAME`",
            check="no-identity",
        )
    if (folder / CLIENT_FILE).exists():
        raise KitError(f"{folder} is the complete kit of a client already; nothing was changed", check="kit-complete")
    admission = Admission.load(admission_file)
    check_fingerprint(admission.authority, [authority_fingerprint], "the authority of this admission")
    roster = admission.roster
    if roster.keys.get(admission.client_id) != public_bytes(open_identity(folder)):
        raise KitError(
            f"{admission_file} admits another key than the one in {folder}; enrol with the folder it is for",
            check="other-key",
        )
    files: dict[str, bytes | str] = {
        AUTHORITY_FILE: public_pem(Ed25519PublicKey.from_public_bytes(admission.authority)),
        CA_FILE: admission.ca,
        ROSTER_FILE: roster.to_json(),
        # Last, because a folder with it is a kit.
        CLIENT_FILE: client_text(
            roster.federation, admission.client_id, admission.name, admission.server_url, node_config, node_keys
        ),
    }
    if not (folder / POLICY_FILE).exists():
        replace_file(folder / POLICY_FILE, policy_text(Policy.default(max(FEWEST_CLIENTS, len(roster.members)))))
    for name, content in files.items():
        replace_file(folder / name, content)
    return ClientKit.load(folder)


def rotate(folder: Path, *, key: str = "", randomness: Randomness = os.urandom) -> tuple[Path, JoinRequest]:
    """Make the key that is to replace the one of a kit, and the request for it, signed by both.

    The kit keeps using its key until a roster names the new one. A second call returns the same new key. `key` is as
    in `ask`.
    """
    kit = ClientKit.load(folder)
    request = JoinRequest.make(kit.name, make_next(kit.folder, randomness, key), kit.identity)
    path = kit.folder / f"{kit.name}{REQUEST_SUFFIX}"
    replace_file(path, request.to_json())
    return path, request
