"""Sums that differ by one client, or by the bound of one: each attack asks twice about what is nearly one model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from benchmarks.privacy.federation import Attacked, Vector, flat
from benchmarks.privacy.reading import Reading
from fedcore.state import ModelState

LOST: Final = 4
"""The client that is said to be lost in the second exchange of a pair."""
LARGEST: Final = 8.0
"""A bound that no update exceeds."""
LEAST: Final = 1e-4
CUTS: Final = 20


async def same_model(fed: Attacked, _: int) -> Reading:
    """The same model again, with one client away."""
    return await _pair(fed)


async def one_ulp(fed: Attacked, _: int) -> Reading:
    """The same but for the last bit of one float, as the next model of the run: it has no step to be measured by."""
    return await _pair(fed, state=_one_ulp_from(fed.subject.first_model))


async def one_ulp_in_a_second_run(fed: Attacked, _: int) -> Reading:
    """Two runs of two rounds, whose second models differ in the last bit of one float."""
    reading = Reading()
    told = await fed.sum(fed.ask(run="one"))
    if told is None:
        return reading
    second = told.decoded.state
    whole = await fed.update(fed.ask(second, run="one"))
    await fed.sum(fed.ask(run="two"))
    rest = await fed.update(fed.ask(_one_ulp_from(second), run="two", drops={LOST: "input"}))
    if whole is not None and rest is not None:
        reading.guess_updates([flat(whole) - flat(rest)], fed.updates)
    return reading


def _one_ulp_from(model: ModelState) -> ModelState:
    tensors = {name: np.array(value) for name, value in model.items()}
    first = next(iter(tensors.values())).reshape(-1)
    first[0] = np.nextafter(first[0], np.float32(np.inf))
    return ModelState.from_arrays(tensors)


async def other_metadata(fed: Attacked, _: int) -> Reading:
    """The same tensors in a file that holds other words as well."""
    return await _pair(fed, metadata={"format": "pt"})


async def bound_on_examples(fed: Attacked, _: int) -> Reading:
    """`w-max` on either side of the largest hospital, which fails at the lower one."""
    sizes = [len(fed.subject.problem.training(site)) for site in range(fed.subject.clients)]  # type: ignore[arg-type]
    return await _pair(fed, drops={}, settings={"w-max": max(sizes) - 1})


async def bound_in_message(fed: Attacked, _: int) -> Reading:
    """Clip bounds in the message (Andrew et al. 2021) on either side of the largest norm."""

    def of(bound: float) -> dict[str, Any]:
        config = {"strategy": "adaptive-clipping", "clip-bound": bound, "clients-weigh-one": True}
        return {"configs": {"config": config}}

    return await _bounds(fed, of)


async def bound_on_norm(fed: Attacked, _: int) -> Reading:
    """The setting `clip-norm` on either side of the largest norm."""
    return await _bounds(fed, lambda bound: {"settings": {"clip-norm": bound}})


async def _pair(fed: Attacked, **second: Any) -> Reading:
    """A sum over all, and one that lacks a client: what they differ by is its update."""
    reading = Reading()
    whole = await fed.update(fed.ask(run="pair"))
    rest = await fed.update(fed.ask(**{"run": "pair", "drops": {LOST: "input"}, **second}))
    if whole is not None and rest is not None:
        reading.guess_updates([flat(whole) - flat(rest)], fed.updates)
    return reading


async def _bounds(fed: Attacked, of: Callable[[float], dict[str, Any]]) -> Reading:
    """Halve a bound until it cuts something, then raise it until it cuts the largest update alone.

    Of two sums that it cuts, d1 = n (|u| - b1) and d2 = n (|u| - b2) are what they lack: so n, and n u.
    """
    reading = Reading()
    whole = await fed.update(fed.ask(run="bounds", **of(LARGEST)))
    if whole is None:
        return reading
    truth, cut = fed.updates, dict[float, Vector]()
    low, high = 0.0, LARGEST
    while high > LEAST and len(cut) < CUTS:
        bound = high / 2 if not low else 0.99 * low if high - low < 0.02 * high else (low + high) / 2
        told = await fed.update(fed.ask(run="bounds", **of(bound)))
        if told is None:
            return reading
        lacks = flat(whole) - flat(told)
        if np.linalg.norm(lacks) <= 1e-5 * np.linalg.norm(flat(whole)):
            high = bound
            continue
        cut[bound], before, low = lacks, low, max(low, bound)
        if bound < before:
            reading.guess_updates([_from_two(cut)], truth)
            break
    return reading


def _from_two(cut: dict[float, Vector]) -> Vector:
    """The weighted update that the two largest of these bounds have cut, by what the sums lack at each."""
    (near, one), (far, other) = sorted(cut.items(), reverse=True)[:2]
    lengths = float(np.linalg.norm(one)), float(np.linalg.norm(other))
    weight = (lengths[1] - lengths[0]) / (near - far)
    return one / lengths[0] * (lengths[0] + weight * near)
