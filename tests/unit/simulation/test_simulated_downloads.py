"""Downloads as differences in a simulation: fewer bytes, the model as good as without."""

from __future__ import annotations

import numpy as np
import pytest
from support.simulated import Simulate

from fedcore.errors import ConfigurationError
from fedcore.run.exchange import ExchangeRequest
from fedcore.run.settings import JobSettings
from fedcore.simulation.downloads import Downloads
from fedcore.state import ModelState, difference_bytes, rounded


def test_models_after_the_first_are_differences(simulate: Simulate) -> None:
    runs = {bits: simulate(4, settings={"download-bits": bits}, num_server_rounds=3) for bits in (16, 32)}
    down = {bits: [sum(one["bytes_down"].values()) for one in run.of("exchange-done")] for bits, run in runs.items()}
    assert down[16][0] == down[32][0], "nobody has a model before the first"
    small, whole = (runs[bits].state for bits in (16, 32))
    assert small is not None
    assert whole is not None
    assert down[16][-1] == 4 * difference_bytes(whole.layout) < down[32][-1]
    assert any(not np.array_equal(small[name], whole[name]) for name in small), "clients trained from rounded models"
    for name in small:
        np.testing.assert_allclose(small[name], whole[name], atol=2e-2)


def test_the_mean_is_added_to_the_strategys_own_model() -> None:
    """Added to what clients get, the rounding of every model would stay in all after it."""
    downloads, rng = Downloads(bits=16), np.random.default_rng(1)
    models = [ModelState.from_arrays({"w": rng.standard_normal(2000).astype(np.float32)}) for _ in range(2)]
    first, second = (
        downloads.of(
            ExchangeRequest(
                message_type="train", nodes=(1, 2), server_round=number, model=model, arrays_key="arrays", configs={},
                weight_key="num-examples",
            )
        )
        for number, model in enumerate(models, 1)
    )  # fmt: skip
    assert first.model is not None
    assert second.model is not None
    np.testing.assert_array_equal(first.model["w"], models[0]["w"])
    assert second.model.sha256() == rounded(models[0], models[1]).sha256() != models[1].sha256()
    assert (first.base, second.base) == (models[0], models[1])


@pytest.mark.parametrize("others", [{"aggregation": "plain"}, {"asynchrony": "buffered"}])
def test_what_differences_cannot_be_used_with_is_refused(others: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="download-bits"):
        JobSettings(download_bits=16, **others)  # type: ignore[arg-type]
