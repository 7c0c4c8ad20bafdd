"""What is compared bit by bit: which machines can be compared at all."""

from __future__ import annotations

from benchmarks.bits import machine

CPUINFO = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\n"


def test_two_generations_of_processors_are_two_machines() -> None:
    """Both are called AMD EPYC, and torch's floats differ in their last bits."""
    one, other = (machine(CPUINFO.format(model=model)) for model in (1, 17))
    assert one != other
    assert machine(CPUINFO.format(model=17)) == other
    assert other["cpu"].endswith("cpu family 25, model 17")
