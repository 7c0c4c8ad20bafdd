"""Real agents fetch the models of a run as differences, and one that comes back without its folder gets the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.deployment import Deployment

NOOP = Path(__file__).parents[3] / "benchmarks" / "apps" / "noop"
PARAMETERS = 20_000
ROUNDS = 3


def test_each_model_after_the_first_comes_as_a_difference(tmp_path: Path) -> None:
    with Deployment.open(tmp_path, clients=2) as made:
        made.app = NOOP
        made.start()
        ended = made.submit(
            settings={"min-clients": 2, "download-bits": 16},
            num_server_rounds=ROUNDS,
            min_nodes=2,
            parameters=PARAMETERS,
        ).finish()
        assert ended.status == 0, ended.stderr
        received = [line.split()[-2:] for line in made.log("client-1").splitlines() if "received" in line]
        trained = [one for one in ended.of("exchange-done") if one["message_type"] == "train"]
    down = [sum(one["bytes_down"].values()) / 2 for one in trained]
    assert len(received) == ROUNDS
    assert down[0] > 4 * PARAMETERS
    assert all(2 * PARAMETERS < size < 3 * PARAMETERS for size in down[1:]), down
    # Each client adds its own constant in every round, 0.001 and 0.002, to the normal values that the app begins with.
    first = np.random.default_rng(0).standard_normal(PARAMETERS, dtype=np.float32)
    blocks = sorted(ended.arrays().items(), key=lambda block: int(block[0].removeprefix("block")))
    values = np.concatenate([values for _, values in blocks])
    np.testing.assert_allclose(values, first + 0.0015 * ROUNDS, atol=1e-4)
