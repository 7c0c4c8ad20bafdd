"""Ready kits for clients that join a federation: all four steps of enrolment in one place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedcore.errors import KitError
from fedcore.federation import ClientKit
from fedcore.federation.authority import Authority
from fedcore.federation.enrolment import accept, ask
from fedcore.federation.files import replace_file
from fedcore.federation.fingerprint import fingerprint
from fedcore.federation.requests import ADMISSION_SUFFIX
from fedcore.federation.roster import check_name


def add_clients(authority: Authority, names: Sequence[str], folder: Path) -> tuple[Authority, list[ClientKit]]:
    """Make a kit in `folder` for each name, and sign the roster that has them all; KitError for a name that is taken.

    If a name or its folder is not available, nothing is made.
    """
    used = set(authority.roster.names.values())
    for name in names:
        check_name(name, "the client name")
        if name in used:
            raise KitError(f"{name} is taken, and names are never reused; choose another one", check="name-taken")
        used.add(name)
        if (folder / name).exists():
            raise KitError(f"{folder / name} exists already; nothing was changed")
    requests = [ask(folder / name, name)[1] for name in names]
    authority = authority.approve(requests)
    ids = {member.name: member.id for member in authority.roster.members}
    kits = []
    for name in names:
        admission = folder / name / f"{name}{ADMISSION_SUFFIX}"
        replace_file(admission, authority.admission(ids[name]).to_json())
        kits.append(accept(folder / name, admission, fingerprint(authority.public_key)))
    return authority, kits
