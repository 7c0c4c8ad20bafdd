"""What the grid reads of the frames that called it, and that it leaves nothing there."""

from __future__ import annotations

import inspect
import weakref
from pathlib import Path
from types import FrameType

import flwr
import numpy as np

from fedcore.flower.grid.aggregation_guard import variable

LOOP = """
def loop(make, ask):
    replies = make(1)
    first = ask()
    replies = make(2)
    living = alive()
    return first, ask(), living
"""


def test_a_look_at_flowers_loop_does_not_hold_what_it_has_let_go_of() -> None:
    made: list[weakref.ref[np.ndarray]] = []

    def make(number: int) -> np.ndarray:
        array = np.full(3, number)
        made.append(weakref.ref(array))
        return array

    def ask() -> int:
        return int(variable(caller(), "replies")[0])

    scope: dict[str, object] = {"alive": lambda: [reference() is not None for reference in made]}
    exec(compile(LOOP, str(Path(flwr.__file__).with_name("loop.py")), "exec"), scope)
    assert scope["loop"](make, ask) == (1, 2, [False, True])  # type: ignore[operator]


def test_what_an_app_has_by_locals_stays_its_own() -> None:
    def app() -> object:
        number = 7
        mine = locals()
        return number, variable(caller(0), "number"), mine["number"]

    assert app() == (7, 7, 7)


def test_a_frame_without_the_variable_has_none() -> None:
    assert variable(caller(0), "nothing") is None


def caller(above: int = 1) -> FrameType:
    """The frame that called this function, or the one above."""
    return inspect.stack()[1 + above].frame
