"""Comparisons made up for tests of layout: no run stands behind their numbers."""

from __future__ import annotations

import math
from typing import Any

from fedcore.comparison.judging import JudgedBy
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.report import Comparison, ModeTitle, SiteSplit
from fedcore.comparison.results import CurvePoint, LostWorker, RunResult, SiteResult, Staleness, number_of
from fedcore.simulation.devices.network import Cost, Network
from fedcore.wire.events import PrivacyTerms

MACHINE = {
    "system": "Linux x86_64",
    "python": "3.11.2",
    "cores": 2,
    "packages": {"fedcore": "0.1.0", "torch": "2.13.0"},
}
# Rate of learning, bytes of a round, seconds of a round.
_SHAPES = {
    "centralized": (0.55, 0, 0.4),
    "local": (0.35, 0, 0.2),
    "allreduce": (0.54, 9_000_000, 0.7),
    "local-sgd": (0.5, 600_000, 0.4),
    "diloco": (0.45, 600_000, 0.4),
    "ps-sync": (0.545, 12_000_000, 0.9),
    "ps-async": (0.6, 12_000_000, 0.5),
    "ps-ssp": (0.58, 12_000_000, 0.6),
    "federated": (0.42, 60_000, 1.4),
    "federated-plain": (0.43, 120_000, 1.1),
    "federated-dp": (0.25, 62_000, 1.5),
    "federated-async": (0.4, 55_000, 0.9),
}
_AGGREGATION = {"federated-plain": "plain"} | dict.fromkeys(("federated", "federated-dp", "federated-async"), "secure")
EVERY_MODE = ",".join(_SHAPES)


def made_up_run(label: str, *, seed: int = 1, rounds: int = 6, sites: int = 4, **changes: Any) -> RunResult:
    """A finished run; `changes` are laid over its fields."""
    (mode,) = parse_modes(label)
    rate, size, pace = _SHAPES[mode.kind]
    curve = tuple(_point(n, rate, size, pace, seed) for n in range(rounds + 1))
    names = [f"client-{site + 1}" for site in range(sites)]
    last = number_of(curve[-1].metrics, "accuracy") or 0.0
    values: dict[str, Any] = {
        "mode": label,
        "kind": mode.kind,
        "seed": seed,
        "aggregation": _AGGREGATION.get(mode.kind, "none"),
        "parameters": 4810,
        "samples": 1437 * rounds,
        "steps": dict.fromkeys(names, 45 * rounds),
        "seconds": curve[-1].seconds,
        "wall_seconds": curve[-1].seconds + 6,
        "simulated_seconds": curve[-1].simulated_seconds,
        "bytes_up": dict.fromkeys(names, size * rounds // 2) if size else {},
        "bytes_down": dict.fromkeys(names, size * rounds // 2) if size else {},
        "initial_sha256": f"{seed:064x}",
        "model_sha256": "ab" * 32,
        "precision": "float32",
        "curve": curve,
        "sites": tuple(
            SiteResult(site=name, examples=90, metrics={"loss": 0.3, "accuracy": last - 0.02 + 0.01 * index})
            for index, name in enumerate(names)
        ),
        "staleness": _staleness(mode.kind) if mode.kind.startswith("ps-") or mode.kind == "federated-async" else None,
    }
    if mode.kind == "federated-dp":
        values["epsilon_spent"] = 6.4
        values["privacy"] = PrivacyTerms(
            mechanism="gaussian",
            noise_multiplier=1.0,
            clip_norm=1.0,
            metric_bound=0.0,
            epsilon_budget=8.0,
            delta=1e-5,
        )
    return RunResult(**{**values, **changes})


def made_up(modes: str = "centralized,federated", *, seeds: int = 1, **changes: Any) -> Comparison:
    """A comparison of made-up runs of these modes; `changes` are laid over its fields."""
    chosen = parse_modes(modes)
    values: dict[str, Any] = {
        "app": "digits",
        "sites": 4,
        "partition": "dirichlet:0.3",
        "seeds": tuple(range(1, seeds + 1)),
        "run_config": {"lr": 0.05, "batch-size": 32},
        "settings": {"min-clients": 4},
        "created": "2026-01-02T03:04:05+00:00",
        "machine": MACHINE,
        "modes": tuple(ModeTitle(label=m.label, kind=m.kind, title=m.mode.title) for m in chosen),
        "runs": tuple(made_up_run(mode.label, seed=seed) for mode in chosen for seed in range(1, seeds + 1)),
        "network": Network.parse("wan,slow=2:4"),
        "cost": Cost(step=0.002, example=1e-5),
        "judged_by": JudgedBy(name="accuracy", better="max"),
        "split": tuple(
            SiteSplit(site=f"client-{i + 1}", training=100 * (i + 1), test=90, labels=_labels(i)) for i in range(4)
        ),
    }
    return Comparison(**{**values, **changes})


def everything() -> Comparison:
    """Every mode, three seeds, a sweep, a failed run, a lost worker, a difference."""
    whole = made_up(EVERY_MODE, seeds=3)
    runs = list(whole.runs)
    swept = [made_up_run("diloco", seed=seed, point={"outer-lr": 0.3}) for seed in (1, 2, 3)]
    runs = [_pointed(run) if run.mode == "diloco" else run for run in runs] + swept
    lost = LostWorker(worker="client-3", round=2, consequence="the others went on without it", seconds=0.21)
    runs[5] = made_up_run("local", seed=3, losses=(lost,), samples=7000)
    runs[8] = RunResult(
        mode="allreduce", kind="allreduce", seed=3, status="failed", reason="client-2 was lost in round 3"
    )
    return made_up(EVERY_MODE, seeds=3, runs=tuple(runs))


def _pointed(run: RunResult) -> RunResult:
    return made_up_run(run.mode, seed=run.seed, point={"outer-lr": 0.7})


def _point(n: int, rate: float, size: int, pace: float, seed: int) -> CurvePoint:
    accuracy = 0.97 - 0.87 * math.exp(-rate * n * 1.4) + (0.003 * ((seed * 7 + n * 3) % 5 - 2) if n else 0)
    return CurvePoint(
        round=n,
        samples=1437 * n,
        seconds=pace * n * (1 + 0.05 * seed),
        simulated_seconds=pace * n + size * n * 8 / 1e8,
        bytes_up=size * n / 2,
        bytes_down=size * n / 2,
        metrics={"loss": 2.3 * math.exp(-rate * n) + 0.1, "accuracy": accuracy},
    )


def _staleness(kind: str) -> Staleness:
    if kind == "ps-sync":
        return Staleness(clocks={0: 1000}, updates={0: 1000}, bound=0)
    if kind == "ps-ssp":
        return Staleness(clocks={0: 400, 1: 300, 2: 200, 3: 100}, updates={2: 300, 3: 500, 4: 200}, bound=3)
    return Staleness(clocks={n: 300 - 12 * n for n in range(24)}, updates={n: 200 - 10 * abs(n - 3) for n in range(9)})


def _labels(site: int) -> dict[str, int]:
    return {str(label): (7 + 3 * site) * (1 + (label * (site + 2)) % 5) for label in range(10)}
