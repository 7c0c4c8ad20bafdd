"""What a client has, and a local work whose outcome depends on that in every way that the agent knows."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from client_app.exchange.eligibility import NotEligible
from client_app.ranks.failures import OUT_OF_MEMORY, RANK_HUNG, RANK_KILLED, AppFailed, RankFailed
from client_app.ranks.messages import LocalAnswer
from fedcore.errors import AppError, DataError, FedcoreError, StorageFull
from fedcore.state import ModelState
from fedcore.wire.tasks import Task

HUGE = 1e15
"""An update that exceeds the first scale, whatever its weight."""

NOBODY = 1e9
"""A bound `b` that no record exceeds."""

RAISES: Mapping[str, Callable[[], FedcoreError]] = {
    "app-raises": lambda: AppFailed("Traceback\nValueError: patient 17 has no age"),
    "killed": lambda: RankFailed("rank 0 was killed by signal 9", RANK_KILLED),
    "hung": lambda: RankFailed("rank 0 gave no answer", RANK_HUNG),
    "out-of-memory": lambda: RankFailed("rank 0 is out of memory", OUT_OF_MEMORY),
    "no-data": lambda: DataError("there is no file here"),
    "wrong-records": lambda: AppError("the reply holds no ArrayRecord"),
    "disk-full": lambda: StorageFull("the app filled the disk"),
    "not-eligible": lambda: NotEligible("the owner wants the machine back"),
}
SPOILS = ("no-model", "unasked-model", "no-file", "garbage", "other-shape", "other-dtype", "tensor-missing", "nan")
OUTCOMES = ("fine", *RAISES, *SPOILS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Of one client. records: one feature of each. metrics: reported beside the loss. outcome: one of OUTCOMES.

    recovers: whether what `outcome` says happens the first time only. seconds: that the local work takes. secret: marks
    the client's update, which no difference of sums should show; HUGE exceeds the first scale.
    """

    records: tuple[float, ...] = (0.5,)
    examples: int = 10
    secret: float = 0.0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    outcome: str = "fine"
    recovers: bool = False
    seconds: float = 0.0


@dataclass(slots=True)
class Work:
    """A `LocalWork` over one client's data: a step whose size the operator's lr decides.

    A model with tensors w and b asks of each record whether w x > b; where one is, the update becomes NaN. One whose
    layer is zero is dead: nothing is learned from it.
    """

    data: Data
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the client has exchanged its keys: work takes longer than that, in every world."""

    async def run(self, task: Task, model: Path | None, out: Path, *, aggregated_round: int = 0) -> LocalAnswer:
        data = self.data
        await self.begun.wait()
        if data.seconds > task.seconds:
            raise RAISES["hung"]()
        if data.outcome in RAISES:
            if data.recovers:
                self.data = replace(data, outcome="fine")
            raise RAISES[data.outcome]()
        trained = task.trains
        if model is not None and trained:
            self._save(self._step(ModelState.open(model), task), out)
        if data.outcome in ("no-model", "unasked-model"):
            trained = not trained if data.outcome == "unasked-model" else False
        if task.queries:  # as the ranks answer one: each client is one example
            numbers = {"rows/count": min(data.examples, 2**62), "rows/loss": self._loss(model)}
            return LocalAnswer(examples=1, metrics={**numbers, **data.metrics}, trained=trained)
        return LocalAnswer(examples=data.examples, metrics={"loss": self._loss(model), **data.metrics}, trained=trained)

    def _step(self, state: ModelState, task: Task) -> dict[str, np.ndarray]:
        data, x = self.data, np.asarray(self.data.records, np.float32)
        rate = float(task.run_config.get("lr", 1.0))
        step = rate * (float(np.mean(x)) if x.size else 0.0) + data.secret
        if data.outcome == "nan" or (x * state["w"][0] > state["b"][0]).any():
            step = float("nan")
        if not state["layer"].any():
            step = 0.0
        return {name: value + np.float32(step) for name, value in state.items()}

    def _save(self, new: dict[str, np.ndarray], out: Path) -> None:
        match self.data.outcome:
            case "no-file":
                return
            case "garbage":
                out.write_bytes(b"not a model")
                return
            case "other-shape":
                new["layer"] = new["layer"][:-1].copy()
            case "other-dtype":
                new["layer"] = new["layer"].astype(np.float64)
            case "tensor-missing":
                del new["layer"]
        ModelState.from_arrays(new).save(out)

    def _loss(self, model: Path | None) -> float:
        x = np.asarray(self.data.records, np.float64)
        w = float(ModelState.open(model)["w"][0]) if model is not None else 0.0
        return float(np.mean((x - w) ** 2)) if x.size else 0.0


LAYOUTS = ("reversed", "renamed", "unused")
UNUSED = "unused"


def dead_model() -> ModelState:
    """A model from which every update is zero."""
    return ModelState.from_arrays({**make_model(), "layer": np.zeros(3, np.float32)})


def make_model(*, w: float = 0.0, b: float = NOBODY, shift: float = 0.0, layout: str = "") -> ModelState:
    """A global model; `w` and `b` are the question that a crafted one asks.

    layout: one of LAYOUTS, in which the same tensors have another order or another name, or a further one is unused.
    """
    state = ModelState.from_arrays(
        {
            "w": np.array([w], np.float32),
            "b": np.array([b], np.float32),
            "layer": np.array([0.25, -1.0, 2.0], np.float32) + np.float32(shift),
        }
    )
    match layout:
        case "reversed":
            return state.renamed({name: name for name in reversed(list(state))})
        case "renamed":
            return state.renamed({name.replace("layer", "layers"): name for name in state})
        case "unused":
            return ModelState.from_arrays({**state, UNUSED: np.zeros(1, np.float32)})
    return state


def substance(state: ModelState) -> str:
    """What the app makes of a model, whatever its tensors are called and in which order they are."""
    values = sorted(value.tobytes() for name, value in state.items() if name != UNUSED)
    return hashlib.sha256(b"".join(values)).hexdigest()
