"""Updates that do not fit into their scales: nothing is clipped, and no app runs twice for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam
from numpy.typing import NDArray

from benchmarks.codec_runs import UNIT, Element, follow
from fedcore.codec import Decoded, Encoding
from fedcore.codec.scaling.error_bound import error_bound
from fedcore.errors import RunFailed, UpdateTooLarge
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.retries import MOST_REPEATS
from fedcore.state import ModelState

Simulate = Callable[..., Any]
UNEVEN = Path(__file__).parents[2] / "apps" / "uneven"
PLAIN = {"aggregation": "plain"}
STEP = 2e-2
"""Of updates near 3: what 16-bit fields leave of them with headroom, in the mean of four sites."""


def both(simulate: Simulate, settings: dict[str, Any] | None = None, **run: Any) -> tuple[Any, float]:
    """The secure run, and how far its model ends from the plain one's."""
    secure = simulate(4, app=UNEVEN, settings=settings, **run)
    plain = simulate(4, app=UNEVEN, settings={**(settings or {}), **PLAIN}, **run)
    return secure, float(np.abs(secure.state["weight"] - plain.state["weight"]).max())


def runs_of(folder: Path) -> dict[str, list[int]]:
    """Site -> the rounds in which its app ran, in order."""
    return {path.name: [int(line) for line in path.read_text().split()] for path in sorted(folder.iterdir())}


def test_a_large_site_that_misses_a_round(simulate: Simulate) -> None:
    """The scales may not shrink to the small ones meanwhile."""
    done, difference = both(simulate, num_server_rounds=4, away={2: [4]})
    assert [len(exchange["survivors"]) for exchange in done.of("exchange-done")] == [4, 3, 4, 4]
    assert all(exchange["clipped"] == 0 == exchange["lost_norm"] for exchange in done.of("exchange-done"))
    assert difference < STEP


@pytest.mark.parametrize("strategy", ["FedAvg", "FedAdam"])
@pytest.mark.parametrize("elements", [1, 500])
def test_a_sudden_step_is_repeated_with_wider_scales(
    simulate: Simulate, tmp_path: Path, strategy: str, elements: int
) -> None:
    large = {"large_round": 4, "large_site": 3, "large_by": 100.0, "large_elements": elements}
    run = {"strategy": strategy, "num_server_rounds": 6, **large}
    done, difference = both(simulate, {"w-max": 512}, **run)
    [repeat] = done.of("exchange-repeated")
    assert (repeat["large"], repeat["survivors"], repeat["server_round"]) == (1, 4, 4)
    assert all(exchange["clipped"] == 0 for exchange in done.of("exchange-done"))
    assert done.of("exchange-failed") == []
    assert difference < (STEP if strategy == "FedAdam" else STEP * 100)
    simulate(4, app=UNEVEN, settings={"w-max": 512}, runs=str(tmp_path), **run)
    assert Counter(map(tuple, runs_of(tmp_path).values())) == {(1, 2, 3, 4, 5, 6): 4}


def test_one_element_beyond_its_scale_moves_no_fedadam_by_more_than_the_codec(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secure and plain, element by element, within the codec's bound as the strategy carries it along."""
    sums: list[tuple[Encoding, Decoded]] = []
    learn = EncodingPlan.learn

    def listen(plan: EncodingPlan, message_type: str, encoding: Encoding, decoded: Decoded) -> None:
        sums.append((encoding, decoded))
        learn(plan, message_type, encoding, decoded)

    monkeypatch.setattr(EncodingPlan, "learn", listen)
    run = {"strategy": "FedAdam", "num_server_rounds": 6, "large_round": 4, "large_site": 3, "large_by": 100.0}
    secure = simulate(4, app=UNEVEN, settings={"w-max": 512}, **run)
    plain = simulate(4, app=UNEVEN, settings=PLAIN, **run)
    assert len(secure.of("exchange-repeated")) == 1
    assert len(sums) == 6
    model, bound = fedadam_by_hand(sums, large_round=4, large_site=3, large_by=100.0)
    np.testing.assert_allclose(plain.state["weight"], model, rtol=1e-5, atol=1e-5)
    apart = np.abs(secure.state["weight"].astype(np.float64) - plain.state["weight"])
    assert np.all(apart <= bound)
    assert np.median(bound) < 0.03, "a bound that says something, of steps that add up to 0.5"


def fedadam_by_hand(
    sums: list[tuple[Encoding, Decoded]], *, large_round: int, large_site: int, large_by: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The plain run of the app in float64, and how far the secure one may be from it; each [2000]."""
    strategy, model, state = FedAdam(), np.zeros(2000), Element(*(np.zeros(2000) for _ in range(5)))
    points = [np.random.default_rng(site).normal(loc=5.0, size=2000) for site in range(4)]
    for number, (encoding, decoded) in enumerate(sums, start=1):
        trained = [model + 0.5 * (point - model) for point in points]
        if number == large_round:
            trained[large_site][0] += large_by
        base = ModelState.from_arrays({"weight": model.astype(np.float32)})
        codec = error_bound(encoding, survivors=4, examples=85, statistics=decoded.statistics, base=base)["weight"]
        largest = np.abs(model) + np.abs(points).max(axis=0) + np.abs(trained).max(axis=0)
        delta = np.average(trained, axis=0, weights=(1, 4, 16, 64)) - model
        follow(state, strategy, number, delta, largest, codec + 16 * UNIT * largest)
        rate = strategy.eta * np.sqrt(1 - strategy.beta_2 ** (number + 1)) / (1 - strategy.beta_1 ** (number + 1))
        model = model + rate * state.first / (np.sqrt(state.second) + strategy.tau)
    return model, state.apart


def test_a_step_in_the_first_round(simulate: Simulate) -> None:
    """There nothing is known of magnitudes, so the scale is generous; this is beyond it."""
    done, difference = both(simulate, {"w-max": 512}, large_round=1, large_site=3, large_by=1e8)
    assert {event["large"] for event in done.of("exchange-repeated")} == {1}
    assert difference < 1e8 * STEP


def test_warn_goes_on_and_says_how_much_was_lost(simulate: Simulate) -> None:
    large = {"large_round": 3, "large_site": 3, "large_by": 1e5}
    done = simulate(4, app=UNEVEN, settings={"clipping": "warn", "w-max": 512}, **large)
    assert [exchange["clipped"] for exchange in done.of("exchange-done")] == [0, 0, 1]
    assert 0.5 < done.of("exchange-done")[2]["lost_norm"] < 1
    assert done.of("exchange-repeated") == []


def test_an_update_that_shrinks_a_thousandfold_is_asked_for_again_in_wider_fields(
    simulate: Simulate, tmp_path: Path
) -> None:
    """As after a step of a learning rate schedule: at the scale of before it would be mostly rounding."""
    run = {"num_server_rounds": 4, "late_round": 3, "late_rate": 1e-4}
    done, difference = both(simulate, {"w-max": 512}, **run)
    assert [event["coarse"] for event in done.of("exchange-repeated")] == ["weight"]
    assert done.of("exchange-failed") == []
    assert difference < STEP
    simulate(4, app=UNEVEN, settings={"w-max": 512}, runs=str(tmp_path), **run)
    assert Counter(map(tuple, runs_of(tmp_path).values())) == {(1, 2, 3, 4): 4}


def test_near_the_point_where_the_sites_agree_secure_is_plain(simulate: Simulate) -> None:
    """The mean halves in each round, what each site sends does not."""
    _, difference = both(simulate, {"w-max": 512}, num_server_rounds=20)
    assert difference < 1e-5


def test_repeats_count_against_no_attempt_and_end(simulate: Simulate) -> None:
    done = simulate(4, app=UNEVEN, settings={"w-max": 512, "max-attempts": 1}, large_round=1, large_by=1e7)
    assert len(done.of("exchange-repeated")) <= MOST_REPEATS
    assert len(done.of("exchange-done")) == 3


def test_fail_ends_the_run_at_once_and_says_what_to_set(simulate: Simulate) -> None:
    with pytest.raises(RunFailed, match=r'^round 3\D+1 of 4 .*clipping = "repeat"') as failed:
        simulate(4, app=UNEVEN, settings={"clipping": "fail", "w-max": 512}, large_round=3, large_by=1e5, large_site=3)
    assert isinstance(failed.value.__cause__, UpdateTooLarge)
