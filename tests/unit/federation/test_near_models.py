"""Which models are nearly the same: measured in steps of training, over all runs of a client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcore.federation.near_models import ModelHistory
from fedcore.state import ModelState, Sketcher

SKETCHER = Sketcher(bytes(32))


class Runs:
    """A client's models, each a place on a line; its name is the place."""

    def __init__(self) -> None:
        self.history = ModelHistory()

    def train(self, run: str, places: Sequence[float], message_type: str = "train", names: str = "w") -> Runs:
        for place in places:
            values = np.full(4, place / 2)  # the norm of it is the place
            sketch = SKETCHER.sketch(ModelState.from_arrays({names: values}))
            assert sketch is not None
            self.history.book.add(f"{names}{place}", sketch)
            self.history.add(run, message_type, f"{names}{place}")
        return self

    def near(self, place: float, within: float, message_type: str = "train") -> set[str]:
        return set(self.history.near(message_type, f"w{place}", within))


def test_models_in_a_row_are_never_near() -> None:
    """However fast the steps become shorter, or longer."""
    shrinking = [0.0, 100.0, 101.0, 101.01]
    runs = Runs().train("one", shrinking)
    assert [runs.near(place, 0.99) for place in shrinking] == [set()] * 4


def test_another_run_comes_near() -> None:
    runs = Runs().train("one", [0, 10, 20, 30]).train("two", [0, 10.5])
    assert runs.near(10.5, 0.1) == {"w10"}
    assert runs.near(10.5, 0.04) == set()


def test_the_last_model_of_a_run_has_the_step_that_led_to_it() -> None:
    runs = Runs().train("one", [0, 10]).train("two", [10.5])
    assert runs.near(10.5, 0.1) == {"w10"}


def test_the_step_onward_counts_as_soon_as_there_is_one() -> None:
    """A first step is often many times the next ones."""
    runs = Runs().train("one", [0, 1000, 1010]).train("two", [990, 1005])
    assert runs.near(1005, 0.25) == set()
    assert runs.near(1010, 0.25) == set()


def test_of_two_steps_the_smaller_one_counts() -> None:
    """A run whose first step is long may come back to where it began, a few short steps away."""
    assert Runs().train("one", [0, 100, 10, 9, 8]).near(8, 0.25) == set()
    runs = Runs().train("one", [0, 10, 20]).train("two", [10.1, 10.3])
    assert runs.near(10.3, 0.25) == set()


def test_a_model_that_was_only_evaluated_has_a_step() -> None:
    """Runs that begin with it and end after one round would else have none."""
    runs = Runs().train("one", [10, 20], "evaluate").train("two", [20]).train("three", [20.5])
    assert runs.near(20.5, 0.25) == {"w20"}


def test_a_message_type_has_steps_of_its_own() -> None:
    """Evaluated every tenth round, trained in each."""
    runs = Runs().train("one", [0, 100], "evaluate").train("one", [0, 10]).train("two", [5])
    assert runs.near(5, 0.25) == set()
    assert runs.near(5, 0.25, "evaluate") == {"w0"}


def test_models_of_two_layouts_take_turns() -> None:
    """As generator and discriminator do: each has its own steps."""
    runs = Runs()
    for turn in range(3):
        runs.train("one", [10 * turn]).train("one", [turn], names="v")
    assert runs.near(20, 0.9) == set()
    runs.train("two", [11])
    assert runs.near(11, 0.25) == {"w10"}


def test_without_a_step_only_the_same_elements_are_near() -> None:
    runs = Runs().train("one", [10]).train("two", [10.000001])
    assert runs.near(10.000001, 0.99) == set()
    book = runs.history.book
    book.add("another file", book.sketches["w10"])
    runs.history.add("three", "train", "another file")
    assert runs.history.near("train", "another file", 0.1) == {"w10"}


def test_a_model_of_integers_is_near_none() -> None:
    history = ModelHistory()
    for run in ("one", "two"):
        history.add(run, "train", f"integers of {run}")
    assert history.near("train", "integers of two", 0.99) == frozenset()


def test_a_repeat_is_no_step() -> None:
    runs = Runs().train("one", [0, 10, 10, 20])
    assert runs.history.is_last("one", "train", "w20")
    assert runs.near(10, 0.99) == set()
