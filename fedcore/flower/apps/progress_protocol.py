"""Progress lines that a `local_app` prints for `fedcore compare` to parse.

Printed only if the variable is set. They stay on the client's machine, like all that an app prints.
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

PROGRESS_VARIABLE: Final = "FEDCORE_TELL"
"""Environment variable of a client; 1 makes it print progress lines. Of a server, 1 makes the ServerApps of its runs
leave the means of their trainings among their files."""
PACE_PREFIX: Final = "FEDCORE_PACE_"
"""Prefix of a variable's name, before the client's name: the least seconds that its training takes."""
VALIDATION_VARIABLE: Final = "FEDCORE_VALIDATION"
"""Environment variable of a process that tunes: the share of its training examples that is set apart."""
_LINE: Final = re.compile(r"fedcore tells (more|all) (.*?) #")
_CHARACTERS: Final = 1500
"""Most characters of one line; agents cut longer ones when they show them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """One training task is done."""

    round: int
    examples: int
    """Examples that the engine took gradients of, repetitions counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationProgress:
    """The model of a round on this client's test part, evaluated by the app's loss and metrics.

    The fields are those of `fedcore.training.loop.Evaluation`.
    """

    round: int
    examples: int
    targets: int
    loss: float
    sums: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


ProgressLine: TypeAlias = TrainingProgress | EvaluationProgress
_KINDS: Final[Mapping[str, Any]] = {kind.__name__: kind for kind in (TrainingProgress, EvaluationProgress)}


def progress_enabled() -> bool:
    """Whether this process is to print progress lines."""
    return os.environ.get(PROGRESS_VARIABLE) == "1"


def validation_share() -> float:
    """The share of the training examples that this process sets apart as validation data, 0 for none."""
    return float(os.environ.get(VALIDATION_VARIABLE, "0"))


def wait_for_pace(start: float, server_round: int) -> None:
    """Sleep until the training of this round has taken as long as the comparison asks of this client.

    Args:
        start: when the training began, on the clock of `time.monotonic`.
        server_round: the round; the seconds of the variable, a JSON list, repeat over the rounds.
    """
    if paces := _paces():
        time.sleep(max(0.0, start + paces[(server_round - 1) % len(paces)] - time.monotonic()))


@functools.cache
def _paces() -> list[float]:
    """Seconds of each round, as the process got them when it started; none outside a comparison."""
    text = next((value for name, value in os.environ.items() if name.startswith(PACE_PREFIX)), "[]")
    return [float(seconds) for seconds in json.loads(text)]


def print_progress(progress: ProgressLine) -> None:
    """Print it, in as many lines as it takes."""
    text = json.dumps([type(progress).__name__, asdict(progress)])
    pieces = [text[start : start + _CHARACTERS] for start in range(0, len(text), _CHARACTERS)]
    for number, piece in enumerate(pieces, start=1):
        more = "more" if number < len(pieces) else "all"
        print(f"fedcore tells {more} {piece} #", flush=True)  # noqa: T201 - the comparison reads the agent's log


def parse_progress(lines: Iterable[str]) -> Iterator[ProgressLine]:
    """The progress lines among the lines of an agent's log."""
    text = ""
    for line in lines:
        if match := _LINE.search(line):
            text += match[2]
            if match[1] == "all":
                kind, values = json.loads(text)
                if "sums" in values:  # JSON knows no tuples
                    values["sums"] = {name: tuple(sums) for name, sums in values["sums"].items()}
                yield _KINDS[kind](**values)
                text = ""
