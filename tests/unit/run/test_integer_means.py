"""The line about integer tensors whose mean is no whole number."""

from __future__ import annotations

from fedcore.run.integer_means import rounded_line


def test_nothing_is_said_of_exact_means() -> None:
    assert rounded_line(()) == ""


def test_names_that_fit_are_in_the_line_and_the_others_are_counted() -> None:
    names = [f"layers.{number}.norm.num_batches_tracked" for number in range(60)]
    line = rounded_line(names)
    named = [name for name in names if repr(name) in line]
    assert named == names[: len(named)]
    assert 1 < len(named) < 10
    assert f"{60 - len(named)} more" in line
    assert repr("x" * 500) in rounded_line(["x" * 500])
