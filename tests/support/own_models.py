"""Local models on a client's disk that a test can tell apart."""

from __future__ import annotations

import numpy as np

from fedcore.state import ModelState, OwnModelFolder, OwnModelRecord

RECORD = OwnModelRecord(
    run="run-1",
    server_round=3,
    app_sha256="ab" * 32,
    personal=("head.bias", "head.weight"),
    metrics={"accuracy": 0.75, "loss_by_epoch": [2.0, 1.5]},
)


def state_of(value: float) -> ModelState:
    brain = np.full(3, 0x3F80, np.uint16)
    arrays = {
        "body.weight": np.full((2, 3), value, np.float32),
        "head.weight": np.full(4, -value, np.float32),
        "counter": np.array(7, np.int64),
        "head.bias": brain,
    }
    return ModelState.from_arrays(arrays, dtypes={"head.bias": "BF16"})


def loaded(store: OwnModelFolder) -> tuple[float, int]:
    """What distinguishes one saved model from the next: a value of its tensors, and its round."""
    model = store.load()
    assert model is not None
    return float(model.state["body.weight"][0, 0]), model.record.server_round
