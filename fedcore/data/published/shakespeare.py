"""Shakespeare's plays by speaking role, as windows of tokens for the prediction of the next one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from fedcore.data.files import SHAKESPEARE_ROLES, read_verified
from fedcore.data.types import Dataset, Integers, Split
from fedcore.errors import ConfigurationError, DataError

WINDOW = 80
# Positions behind the end of a role's text: the value that cross entropy ignores by default.
NO_TARGET = -100
PADDING = 0
_TRAIN_SHARE = 0.8
_MIN_LINES = 3


Encode: TypeAlias = Callable[[str], Sequence[int]]
"""Text to tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakingRole:
    """One speaking role of one play, with its lines in the order of the play."""

    play: str
    name: str
    lines: tuple[str, ...]


def load_shakespeare(
    data_dir: Path | str | None = None, *, window: int = WINDOW, encode: Encode | None = None, vocabulary: int = 0
) -> Dataset:
    """1,160 roles: x int64 [n, window] tokens, y int64 [n, window] the token after each.

    Windows follow one another without overlap; the last one of a role is filled with PADDING, and its y with NO_TARGET.
    Groups are the roles with more than two lines; the first 80 % of a role's lines train, the rest test.

    Raises ConfigurationError and DataError. Source: McMahan et al. (2017), section 3: the split, the limit of two
    lines, the window of 80.

    Args:
        encode: turns text into tokens below `vocabulary`; without it a token is a character, 0 for padding, 1 and up
            for the sorted characters of the whole text.
    """
    if window < 1:
        raise ConfigurationError(f"a window needs at least one token, not {window}")
    if (encode is None) != (vocabulary == 0):
        raise ConfigurationError("a way to encode text and the size of its vocabulary belong together: give both")
    everyone = _roles(read_verified(SHAKESPEARE_ROLES, data_dir))
    if encode is None:
        encode, vocabulary = _by_character(everyone)
    roles = [role for role in everyone if len(role.lines) >= _MIN_LINES]
    cut = [_train_lines(role) for role in roles]
    return Dataset(
        name="shakespeare",
        train=_split((r.lines[:n] for r, n in zip(roles, cut, strict=True)), encode, window),
        test=_split((r.lines[n:] for r, n in zip(roles, cut, strict=True)), encode, window),
        classes=vocabulary,
        group_names=tuple(f"{role.play}: {role.name}" for role in roles),
    )


def _by_character(roles: Iterable[SpeakingRole]) -> tuple[Encode, int]:
    """Every character of the text is a token; code 0 is left for PADDING."""
    characters = sorted({c for role in roles for line in role.lines for c in line} | {"\n"})
    codes = {character: code for code, character in enumerate(characters, start=1)}
    return lambda text: [codes[character] for character in text], len(characters) + 1


def _roles(compressed: bytes) -> list[SpeakingRole]:
    try:
        records = [json.loads(line) for line in gzip.decompress(compressed).splitlines()]
        return [SpeakingRole(play=r["play"], name=r["role"], lines=tuple(r["lines"])) for r in records]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{SHAKESPEARE_ROLES} is not a list of roles") from error


def _train_lines(role: SpeakingRole) -> int:
    """How many lines train: 80 %, but both halves of a role hold at least one line."""
    return min(max(1, int(_TRAIN_SHARE * len(role.lines))), len(role.lines) - 1)


def _split(texts: Iterable[tuple[str, ...]], encode: Encode, window: int) -> Split:
    x, y, groups = [], [], []
    for role, lines in enumerate(texts):
        text = np.fromiter(encode("".join(line + "\n" for line in lines)), dtype=np.int64)
        inputs, targets = _windows(text, window)
        x.append(inputs)
        y.append(targets)
        groups.append(np.full(len(inputs), role, dtype=np.int64))
    return Split(x=np.concatenate(x), y=np.concatenate(y), groups=np.concatenate(groups))


def _windows(text: Integers, window: int) -> tuple[Integers, Integers]:
    """Inputs and targets [ceil((len - 1) / window), window] of one role's text."""
    pairs = len(text) - 1
    rows = -(-pairs // window)
    inputs = np.full(rows * window, PADDING, dtype=np.int64)
    targets = np.full(rows * window, NO_TARGET, dtype=np.int64)
    inputs[:pairs], targets[:pairs] = text[:-1], text[1:]
    return inputs.reshape(rows, window), targets.reshape(rows, window)
