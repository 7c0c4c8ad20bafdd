"""What a `local_app` says of its work in its own process's output, where `fedcore compare` reads it.

Off unless the variable is set. It stays on the client's machine, like all that an app prints.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Final

VARIABLE: Final = "FEDCORE_TELL"
"""Set to 1 in the environment of a client that is to tell."""
_MARK: Final = "fedcore tells "


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One training task that is done. examples: that its engine took gradients of, repetitions counted."""

    round: int
    examples: int


def tell(told: Told) -> None:
    """Print it, if somebody wants to know."""
    if os.environ.get(VARIABLE) == "1":
        print(_MARK + json.dumps(asdict(told)), flush=True)  # noqa: T201 - the agent's log is where it is read


def heard(lines: Iterable[str]) -> Iterator[Told]:
    """What was told in the lines of an agent's log."""
    for line in lines:
        _, mark, rest = line.partition(_MARK)
        if mark:
            yield Told(**json.JSONDecoder().raw_decode(rest)[0])
