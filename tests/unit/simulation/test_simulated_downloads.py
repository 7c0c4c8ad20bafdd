"""Downloads as differences in a simulation: fewer bytes, the model as good as without."""

from __future__ import annotations

import numpy as np
import pytest
from support.simulated import Simulate

from fedcore.errors import ConfigurationError
from fedcore.run.settings import JobSettings
from fedcore.state import difference_bytes


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


@pytest.mark.parametrize("others", [{"aggregation": "plain"}, {"asynchrony": "buffered"}])
def test_what_differences_cannot_be_used_with_is_refused(others: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="download-bits"):
        JobSettings(download_bits=16, **others)  # type: ignore[arg-type]
