"""What hypothesis draws: what clients have and do with it, and what the adversary asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from support.worlds.asks import EVERYBODY, Ask
from support.worlds.data import HUGE, OUTCOMES, Data

NUMBERS = st.one_of(
    st.floats(-4.0, 4.0, width=32), st.sampled_from([math.nan, math.inf, -math.inf, 1e7, 2.0**20, -(2.0**20) - 1])
)
NAMES = st.sampled_from(["acc", "loss", "", "n" * 201, "é", "zz-patient-17"])
METRICS = st.dictionaries(NAMES, st.one_of(NUMBERS, st.lists(NUMBERS, max_size=3), st.just([0.5] * 33)), max_size=2)
COUNTS = st.sampled_from([-1, 0, 1, 10, 172, 199, 2**17, 2**17 + 1, 2**70])


@st.composite
def outcomes(draw: st.DrawFn) -> Data:
    """One client's data: most often sound, sometimes what no codec takes or no app survives."""
    return Data(
        records=tuple(draw(st.lists(st.floats(-2.0, 2.0, width=32), max_size=3))),
        examples=draw(st.one_of(st.integers(1, 300), COUNTS)),
        secret=draw(st.one_of(st.floats(-1.0, 1.0, width=32), st.sampled_from([HUGE, -1e4 * HUGE]))),
        seconds=draw(st.sampled_from([0.0, 0.0, 60.0])),
        metrics=draw(st.one_of(st.just({}), METRICS)),
        outcome=draw(st.one_of(st.just("fine"), st.sampled_from(OUTCOMES))),
        recovers=draw(st.booleans()),
    )


MODELS = st.one_of(
    st.just({}),
    st.builds(lambda w, b: {"w": w, "b": b}, st.sampled_from([1.0, -1.0]), st.floats(-2.0, 2.0, width=32)),
    st.just({"shift": 1e-6}),
    st.just({"w": math.nan}),
)
SETTINGS: Sequence[Mapping[str, Any]] = (
    {"w-max": 20},
    {"metric-max": 0.5},
    {"clip-norm": 0.1},
    {"clipping": "warn"},
    {"clipping": "fail"},
    {"field-bits": 32},
    {"quorum": 4},
    {"max-corrupt": 0.0},
    {"dp-noise-multiplier": 8.0, "clip-norm": 1.0},
    {"dp-noise-multiplier": 8.0, "clip-norm": 1.0, "dp-metric-bound": 1.0, "evaluate-metrics": ["loss"]},
)
TASKS: Sequence[Mapping[str, Any]] = (
    {"run_config": {"lr": 0.5}},
    {"configs": {"config": {"lr": 0.5}}},
    {"configs": {"config": {"clip-bound": 0.5}}},
    {"server_round": 7},
    {"weight_key": "loss"},
    {"app_sha256": "cd" * 32},
    {"aggregation": "plain"},
    {"seconds": 1e12},
    {"seconds": 1.0},
    {"quorum": 2},
)


@st.composite
def near_asks(draw: st.DrawFn) -> list[Ask]:
    """Two runs whose second models lie next to each other; in each exchange one client may be lost."""
    kind = draw(st.sampled_from(["train", "train", "evaluate"]))
    step, aside = draw(st.sampled_from([0.125, -2.0])), draw(st.sampled_from([1e-5, 0.01, 0.05]))
    shifts = [("run-1", 0.0), ("run-1", step), ("run-2", 0.0), ("run-2", step + aside * step)]
    stages = st.sampled_from(["advertise", "share", "input", "consistency", "unmask"])
    lost = st.one_of(st.just({}), st.dictionaries(st.sampled_from(EVERYBODY), stages, max_size=1))
    return [Ask(run=run, message_type=kind, model={"shift": shift}, drops=draw(lost)) for run, shift in shifts]


REPEAT: Mapping[str, Any] = {"attempt": 2, "server_round": 1}
"""Of the second exchange, if it follows a first one of the same kind and model."""
WIDER = (2.0**16, 2.0**24, 2.0**40)


@st.composite
def asks(draw: st.DrawFn) -> list[Ask]:
    """Up to three exchanges; in each at most one thing is bent, so that it comes far, and one client may be lost."""
    drawn = []
    for _ in range(draw(st.integers(1, 3))):
        bent: dict[str, Any] = draw(
            st.one_of(
                st.just({}),
                st.just({}),
                st.builds(lambda settings: {"settings": settings}, st.sampled_from(SETTINGS)),
                st.builds(lambda task: {"task": task}, st.sampled_from(TASKS)),
                st.just({"codec": {"w_max": 20}}),
                st.just({"encoding": {"scales": (0.5,)}}),
                st.just({"encoding": {"metrics": (("loss", None),)}}),
                st.just({"task": REPEAT}),
                st.builds(lambda scale: {"task": REPEAT, "encoding": {"scales": (scale,)}}, st.sampled_from(WIDER)),
                st.just({"cohort": (1, 2, 3)}),
                st.just({"run": "run-2"}),
                st.just({"metadata": {"format": "pt"}}),
            )
        )
        stages = st.sampled_from(["advertise", "share", "input", "consistency", "unmask"])
        drops = draw(st.one_of(st.just({}), st.dictionaries(st.sampled_from(EVERYBODY), stages, max_size=1)))
        kind = draw(st.sampled_from(["train", "train", "evaluate", "train.other", "query.age", "query.weight"]))
        drawn.append(Ask(message_type=kind, model=draw(MODELS), drops=drops, **bent))
    return drawn
