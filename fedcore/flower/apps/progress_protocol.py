"""What a `local_app` says of its work in its own process's output, where `fedcore compare` reads it.

Off unless the variable is set. It stays on the client's machine, like all that an app prints.
"""

from __future__ import annotations

import functools
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias

VARIABLE: Final = "FEDCORE_TELL"
"""Set to 1 in the environment of a client that is to tell."""
PACE: Final = "FEDCORE_PACE_"
"""Begins the name of a variable, with the client's name behind it: how many seconds its training takes at least."""
_LINE: Final = re.compile(r"fedcore tells (more|all) (.*?) #")
_CHARACTERS: Final = 1500
"""Of one line; what agents show of longer ones is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldTraining:
    """One training task is done. examples: that its engine took gradients of, repetitions counted."""

    round: int
    examples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldTest:
    """The model of a round on this client's test part, evaluated by the app's loss and metrics.

    The fields are those of `fedcore.training.loop.Evaluation`.
    """

    round: int
    examples: int
    targets: int
    loss: float
    sums: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


Told: TypeAlias = ToldTraining | ToldTest
_KINDS: Final[Mapping[str, Any]] = {kind.__name__: kind for kind in (ToldTraining, ToldTest)}


def asked() -> bool:
    """Whether somebody wants to know."""
    return os.environ.get(VARIABLE) == "1"


def keep_pace(began: float, server_round: int) -> None:
    """Take as long as whoever compares wants this client to: seconds for each round, over and over, as JSON.

    began: when the training did, on the clock of `time.monotonic`.
    """
    if paces := _paces():
        time.sleep(max(0.0, began + paces[(server_round - 1) % len(paces)] - time.monotonic()))


@functools.cache
def _paces() -> list[float]:
    """Of this process, which is given them when it starts; none where nobody compares."""
    words = next((value for name, value in os.environ.items() if name.startswith(PACE)), "[]")
    return [float(seconds) for seconds in json.loads(words)]


def tell(told: Told) -> None:
    """Print it, in as many lines as it takes."""
    text = json.dumps([type(told).__name__, asdict(told)])
    pieces = [text[start : start + _CHARACTERS] for start in range(0, len(text), _CHARACTERS)]
    for number, piece in enumerate(pieces, start=1):
        more = "more" if number < len(pieces) else "all"
        print(f"fedcore tells {more} {piece} #", flush=True)  # noqa: T201 - the agent's log is where it is read


def heard(lines: Iterable[str]) -> Iterator[Told]:
    """What was told in the lines of an agent's log."""
    text = ""
    for line in lines:
        if found := _LINE.search(line):
            text += found[2]
            if found[1] == "all":
                kind, fields = json.loads(text)
                yield _KINDS[kind](**fields)
                text = ""
