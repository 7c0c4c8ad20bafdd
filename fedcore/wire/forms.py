"""Compatibility of two sides of a federation, as one word after their version.

It is made of the tags of what is signed, hashed and sent, so a change of one of them changes it, too. `WIRE`
is raised with any other change that the version before it cannot read, such as a field of a task or of a message, and
if noise follows from settings in another way.
"""

from __future__ import annotations

import re
from typing import Final

from fedcore.codec.encoding import ENCODING_TAG
from fedcore.codec.privacy.parameters import PRIVATE_ENCODING_TAG
from fedcore.secagg.crypto.domain import Usage
from fedcore.system.version import fedcore_version
from fedcore.wire.tasks import TASK_TAG

WIRE: Final = 6
OTHER_VERSION: Final = "other-version"
"""The check that fails where two sides do not understand each other."""

_PRINTABLE = re.compile(r"[A-Za-z0-9.+() -]{1,80}")
_NUMBER = re.compile(r"v(\d+)")
_WITH_FORMS = re.compile(r"\S+ \((forms [0-9.]+)\)")


def our_forms() -> str:
    """Those of this fedcore: the numbers of wire, task, encoding, noised encoding and protocol."""
    tags = (TASK_TAG, ENCODING_TAG, PRIVATE_ENCODING_TAG, Usage.CONTEXT.value)
    numbers = [match[1] for tag in tags if (match := _NUMBER.search(tag))]
    return "forms " + ".".join([str(WIRE), *numbers])


def our_version() -> str:
    """What this side says of itself in the first contact, such as "0.1.0 (forms 2.2.5.3.3)"."""
    return f"{fedcore_version()} ({our_forms()})"


def understands(version: str) -> bool:
    """Whether this side understands one that says this of itself; versions of before say no forms."""
    match = _WITH_FORMS.fullmatch(version)
    return match is not None and match[1] == our_forms()


def refusal(*, server: str, client: str) -> str:
    """What both sides say then, and what to do; each is the version that the side says of itself."""
    return (
        f"the server is fedcore {_safe(server)}, the client is fedcore {_safe(client)}: they do not understand each "
        "other. Install the server's version at the client, or upgrade the server, whichever is older"
    )


def _safe(version: str) -> str:
    """A peer's word, as it may be shown; without forms it is from before they were said."""
    if not _PRINTABLE.fullmatch(version):
        return "of an unknown version"
    return version if _WITH_FORMS.fullmatch(version) else f"{version} (from before forms were numbered)"
