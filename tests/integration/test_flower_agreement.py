"""The same folder in Flower's own simulation and in ours: the two global models agree within the codec's bound."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcore.codec.scaling.error_bound import error_bound
from fedcore.flower.app import FlowerApp
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.state import ModelState

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits"
SCRIPT = ROOT / "tests" / "support" / "flower_simulation.py"
CLIENTS = 4
RAY_SECONDS = 400
"""Ray starts its own processes and one that imports torch: a quarter of a minute, or minutes on a busy machine."""
RAY_STARTS, RAY_TOO_SLOW = 3, "timed out during startup"
"""Ray waits half a minute for its own processes, whatever it is told, which is not enough on a busy machine."""

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="Flower's simulation needs ray: pip install 'fedcore[simulation]'",
    ),
]


def in_flower(out: Path, rounds: int) -> dict[str, np.ndarray]:
    """The final global model of Flower's own simulation."""
    # Ray's own processes get this one's path, on which the modules beside the script must not hide theirs.
    command = [sys.executable, "-P", str(SCRIPT), str(DIGITS), str(CLIENTS), str(out), str(rounds)]
    for _ in range(RAY_STARTS):
        done = subprocess.run(command, capture_output=True, text=True, timeout=RAY_SECONDS, check=False)
        if RAY_TOO_SLOW not in done.stderr:
            break
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(out) as saved:
        return dict(saved)


def initial_state() -> ModelState:
    """What both start from."""
    if str(DIGITS) not in sys.path:
        sys.path.insert(0, str(DIGITS))
    task = importlib.import_module("digits_app.task")
    seed = int(FlowerApp.load(DIGITS).run_config["seed"])
    return ModelState.from_arrays({name: t.numpy() for name, t in task.initial_model(seed).state_dict().items()})


def test_the_global_models_agree_within_the_codecs_bound(simulate: Callable[..., Any], tmp_path: Path) -> None:
    theirs = in_flower(tmp_path / "flower.npz", rounds=1)
    ours = simulate(CLIENTS, app=DIGITS, num_server_rounds=1)
    start = initial_state()
    encoding = EncodingPlan(FlowerApp.load(DIGITS).settings).encoding("train", start.layout, CLIENTS)
    examples = ours.of("exchange-done")[0]["examples"]
    bounds = error_bound(encoding, survivors=CLIENTS, examples=examples, base=start, largest=1.0)
    for name, array in theirs.items():
        # Flower adds up in float32, in another order: a few units in the last place of the largest value.
        rounding = 8 * np.finfo(np.float32).eps * np.abs(array).max()
        assert np.abs(ours.state[name] - array).max() <= bounds[name] + rounding, name
        assert bounds[name] < 0.01 * np.abs(array - start[name]).max(), "a bound that anything meets says nothing"
