"""Several simulations from one command: the same app with several seeds and values, and one table of all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.comparison.report.summary import Spread, ToTarget
from fedcore.comparison.target import Reached, Target
from fedcore.errors import ConfigurationError, UnknownKey

if TYPE_CHECKING:
    from fedcore.wire.control import Scalar

SEED = "seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One of several runs. seed: of the simulation, and of the app where its run config has a seed."""

    seed: int
    values: Mapping[str, Scalar]

    @property
    def name(self) -> str:
        """A name for its folder."""
        words = [f"{key}={value}" for key, value in self.values.items()]
        return ",".join([*words, f"{SEED}={self.seed}"]).replace("/", "_")

    def place(self, path: Path | None, *, folder: bool) -> Path | None:
        """Where this run puts what a run alone would put at `path`: in a folder of its own."""
        if path is None:
            return None
        return path / self.name if folder else path.parent / self.name / path.name


def points_of(
    seeds: str, vary: Sequence[str], *, seed: int, run_config: Mapping[str, Scalar], settings: Mapping[str, Scalar]
) -> list[SweepPoint]:
    """All combinations of the values with all seeds, the seeds of one combination after one another.

    Raises ConfigurationError for what cannot be read, and for a key that neither the run config nor [tool.fedcore] has.
    """
    from fedcore.comparison.plan import parse_seeds, parse_sweep

    values = parse_sweep(list(vary), option="--vary")
    for key in values:
        if key == SEED:
            raise ConfigurationError("--vary seed: --seeds names the seeds")
        if key not in run_config and key not in settings:
            raise UnknownKey(key, {*run_config, *settings}, "--vary")
    numbers = parse_seeds(seeds, run_config.get(SEED, seed)) or (seed,)
    return [
        SweepPoint(seed=number, values=dict(zip(values, chosen, strict=True)))
        for chosen in itertools.product(*values.values())
        for number in numbers
    ]


def row_of(
    values: Mapping[str, Scalar], summaries: Sequence[Mapping[str, Any]], seeds: Sequence[int]
) -> dict[str, Any]:
    """Mean and spread of the last metrics over the seeds of one combination, as plain JSON."""
    numbers = [_numbers(summary) for summary in summaries]
    names = dict.fromkeys(itertools.chain.from_iterable(numbers))
    spreads = {name: Spread.of(found.get(name) for found in numbers) for name in names}
    metrics = {
        name: {"mean": spread.mean, "sd": spread.sd, "n": spread.n} for name, spread in spreads.items() if spread
    }
    row = {"values": dict(values), "seeds": list(seeds), "metrics": metrics}
    told = [summary["target"] for summary in summaries if "target" in summary]
    return {**row, "target": _to_target(told)} if told else row


def _to_target(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over the runs that reached the target: how many, and what it took them; told: as by `Target.told`."""
    found = [Reached(**one["reached"]) if one["reached"] else None for one in told]
    return {"name": str(Target.of(told[0])), **asdict(ToTarget.of(found))}


def lines_of(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The table of all rows for people: a header, then a line for each."""
    keys = list(rows[0]["values"])
    names = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    targets = _target_columns([row["target"] for row in rows if "target" in row])
    yield (*keys, "seeds", *names, *targets)
    for row in rows:
        shown = [_shown(row["metrics"].get(name)) for name in names]
        shown += [_target_cell(row["target"], kind) for kind in targets.values()]
        yield (*(str(row["values"][key]) for key in keys), str(len(row["seeds"])), *shown)


def _target_columns(found: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Title -> key of `ToTarget`: the round, and the seconds by the clock that counts."""
    if not found:
        return {}
    virtual = any(one["virtual_seconds"] for one in found)
    clock = {"virtual s to it": "virtual_seconds"} if virtual else {"seconds to it": "seconds"}
    return {f"round of {found[0]['name']}": "round", **clock}


def _target_cell(found: Mapping[str, Any], kind: str) -> str:
    clocks = ("round", "seconds", "virtual_seconds")
    spreads = {clock: Spread(**found[clock]) if found[clock] else None for clock in clocks}
    taken = ToTarget(reached=found["reached"], runs=found["runs"], **spreads)
    return taken.shown(spreads[kind], lambda value: f"{value:.1f}")


def _numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    """What of a run has a mean: its last metrics, and how long it took on the virtual clock."""
    found = {name: value for name, value in summary["metrics"].items() if isinstance(value, int | float)}
    virtual = summary["virtual_seconds"]
    return found if virtual is None else {**found, "virtual_seconds": virtual}


def _shown(metric: Mapping[str, Any] | None) -> str:
    if metric is None:
        return "-"
    return f"{metric['mean']:.4f}" + ("" if metric["sd"] is None else f" ± {metric['sd']:.4f}")
