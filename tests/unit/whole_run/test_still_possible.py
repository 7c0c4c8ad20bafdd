"""What a lying server can still do (docs/threat-model.md): who closes one of these has to change its test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from support.worlds.asks import Ask
from support.worlds.data import Data
from support.worlds.play import play


async def test_a_model_a_little_aside_is_another_model(stock: Any, tmp_path: Path) -> None:
    """The sums over three and over four differ by the update of the fourth; only the same model is refused.

    In one run, that is: there the server says how far a step goes. Over runs `test_near_models.py` has it refused.
    """
    data = {number: Data(examples=10 * number, secret=0.125 * number) for number in stock}
    asks = [Ask(), Ask(model={"shift": 1e-6}, drops={4: "input"})]
    full, partial = (await play(asks, data, stock, tmp_path)).releases
    assert full.decoded.examples - partial.decoded.examples == data[4].examples
    refused = await play([asks[0], replace(asks[1], model={})], data, stock, tmp_path)
    assert refused.releases[1] is None
    assert "differencing" in refused.logs[1]


async def test_only_the_first_model_of_a_run_is_traced(unchanged: Any, tmp_path: Path) -> None:
    """A server that lies sends a crafted model after the app's own; it tells how many have a record above 0.75."""
    data = {number: Data(records=(0.5 * number,)) for number in unchanged}
    crafted = {"w": 1.0, "b": 0.75}
    first, later = (await play([Ask(), Ask(model=crafted)], data, unchanged, tmp_path)).releases
    assert first.failures == 0
    assert later.failures == 3
    refused = await play([Ask(model=crafted)], data, unchanged, tmp_path)
    assert refused.releases == [None]
    assert "first-model" in refused.logs[1]
