"""What a server gets that asks again: at wider scales, after a failure, of fewer clients, or only to see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.worlds.asks import Ask
from support.worlds.data import HUGE, Data
from support.worlds.plans import REPEAT
from support.worlds.play import compare, play

from fedcore.codec import Encoding
from fedcore.federation.admission.releases import MOST_SCALES
from fedcore.run.exchange import encoding_of

DATA = {number: Data(records=(0.5 * number,), examples=10 * number, secret=0.125 * number) for number in (1, 2, 3, 4)}
LARGE = {**DATA, 1: replace(DATA[1], secret=HUGE)}
AGAIN = "a repeated exchange; the app does not run again"


def wider(exponent: int, **more: Any) -> Ask:
    return Ask(task=REPEAT, encoding={"scales": (2.0**exponent,)}, **more)


async def test_a_sum_that_was_too_narrow_is_mended(stock: Any, tmp_path: Path) -> None:
    view, found = await compare([Ask(), wider(40)], LARGE, stock, tmp_path)
    assert found == []
    closed, mended = view.releases
    encoding = encoding_of(closed.task)
    assert isinstance(encoding, Encoding)
    assert (closed.decoded, closed.words[encoding.sections["large"]][0]) == (None, 1)
    outside = [word for name in ("small", "examples", "metrics") for word in closed.words[encoding.sections[name]]]
    assert min(map(int, outside)) > 2**32, "nothing but noise"
    assert mended.decoded.examples == 100
    assert mended.decoded.state["layer"][0] == pytest.approx(0.1 * HUGE, rel=1e-6)
    assert all(AGAIN in log for log in view.logs.values())
    told = "elements too large for the scales, so the sum stays closed"
    assert [told in log for log in view.logs.values()] == [True, False, False, False], "its owner alone"


async def test_wider_scales_for_fewer_clients_tell_nobodys_update(stock: Any, tmp_path: Path) -> None:
    """Closed or open, the first sum counts: a client does not know which it was."""
    asks = [Ask(), wider(40, cohort=(2, 3, 4)), wider(40, drops={1: "input"})]
    view, found = await compare(asks, LARGE, stock, tmp_path)
    assert found == []
    assert view.releases[1:] == [None, None]
    assert "differencing" in view.logs[2]


async def test_a_failure_by_chance_is_a_failure_in_every_attempt(stock: Any, tmp_path: Path) -> None:
    flaky = {**DATA, 1: replace(DATA[1], outcome="out-of-memory", recovers=True)}
    third = {**REPEAT, "attempt": 3}
    view, found = await compare([Ask(), Ask(task=REPEAT), replace(wider(40), task=third)], flaky, stock, tmp_path)
    assert found == []
    assert [release.failures for release in view.releases] == [1, 1, 1]


async def test_a_scan_of_scales_ends_early(stock: Any, tmp_path: Path) -> None:
    """How many updates exceed each of them is told, and no more scales than a handful, over all runs."""
    scan = [
        Ask(run=f"run-{place}", encoding={"scales": (2.0 ** (10 + 3 * place),)}) for place in range(MOST_SCALES + 2)
    ]
    view, found = await compare(scan, LARGE, stock, tmp_path)
    assert found == []
    assert [release is not None for release in view.releases] == [True] * MOST_SCALES + [False] * 2


@pytest.mark.parametrize("change", [{"clipping": "warn"}, {"clipping": "fail"}])
async def test_what_becomes_of_large_updates_is_the_owners_to_say(
    stock: Any, tmp_path: Path, change: Mapping[str, str]
) -> None:
    view = await play([Ask(settings=change), Ask(codec=change)], LARGE, stock, tmp_path)
    assert view.releases == [None, None]
    assert "config-not-allowed" in view.logs[1]
    assert "encoding-off-settings" in view.logs[1]
