"""A sweep of simulations: the same app with several seeds and values, and one table of all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from fedcore.cli.main import print_json
from fedcore.cli.simulation_options import SEED, Outputs, SimulationOptions, SweepPoint
from fedcore.comparison.report.summary import Spread, ToTarget
from fedcore.comparison.target import Reached, Target
from fedcore.errors import ConfigurationError, UnknownKey

if TYPE_CHECKING:
    from fedcore.monitoring.run_record import RunRecord
    from fedcore.wire.base import Scalar

Simulate: TypeAlias = "Callable[[SimulationOptions, Outputs, int, Path | None], tuple[RunRecord, dict[str, Any]]]"
"""Runs one simulation with its seed and checkpoint folder: its record, and the summary."""


def sweep_points(
    seeds: str, vary: Sequence[str], seed: int, run_config: Mapping[str, Scalar], settings: Mapping[str, Scalar]
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


def run_sweep(
    points: Sequence[SweepPoint],
    options: SimulationOptions,
    outputs: Outputs,
    state: Path | None,
    simulate: Simulate,
    *,
    as_json: bool,
) -> bool:
    """Run each point, and print the table of all, or of those before one that failed.

    Settings and folders of all are checked before the first begins. Returns whether one ended by its privacy budget.
    """
    outputs = replace(outputs, several=[])
    runs = [(point, options.at(point), outputs.at(point)) for point in points]
    for _, run_options, run_outputs in runs:
        run_outputs.check(run_options.settings)
    summaries: list[dict[str, Any]] = []
    over_budget = False
    try:
        for number, (point, run_options, run_outputs) in enumerate(runs, start=1):
            typer.echo(f"run {number} of {len(runs)}: {point.name}", err=True)
            record, summary = simulate(run_options, run_outputs, point.seed, point.path(state, folder=True))
            summaries.append({"seed": point.seed, "values": dict(point.values), **summary})
            over_budget = over_budget or bool(record.reason)
    finally:
        if summaries:
            outputs.write_report_of_all()
            _print(summaries, as_json=as_json)
            if outputs.report is not None and not as_json:
                typer.echo(f"report: {outputs.report}/report.html, report.md, report.json")
    return over_budget


def _print(summaries: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print all runs as JSON, or the table of the combinations, whose runs follow one another."""
    from rich.console import Console

    from fedcore.monitoring.wide_table import WideColumn, WideTable

    rows = []
    for values, group in itertools.groupby(summaries, key=lambda one: one["values"]):
        runs = list(group)
        rows.append(row_of(values, runs, [run["seed"] for run in runs]))
    if as_json:
        print_json({"runs": summaries, "table": rows})
        return
    header, *lines = lines_of(rows)
    columns = [WideColumn(title, cells) for title, *cells in zip(header, *lines, strict=True)]
    # What was varied stands before the number of seeds.
    Console().print(WideTable(columns=columns, heads=header.index("seeds") + 1))


def row_of(
    values: Mapping[str, Scalar], summaries: Sequence[Mapping[str, Any]], seeds: Sequence[int]
) -> dict[str, Any]:
    """Mean and spread of the last metrics over the seeds of one combination, as plain JSON."""
    numbers = [_numbers(summary) for summary in summaries]
    names = dict.fromkeys(itertools.chain.from_iterable(numbers))
    spreads = {name: Spread.of(run.get(name) for run in numbers) for name in names}
    metrics = {
        name: {"mean": spread.mean, "sd": spread.sd, "n": spread.n} for name, spread in spreads.items() if spread
    }
    row = {"values": dict(values), "seeds": list(seeds), "metrics": metrics}
    targets = [summary["target"] for summary in summaries if "target" in summary]
    return {**row, "target": _to_target(targets)} if targets else row


def _to_target(targets: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over the runs that reached the target: how many, and what it took them.

    Args:
        targets: by `Target.progress`.
    """
    reached = [Reached(**one["reached"]) if one["reached"] else None for one in targets]
    return {"name": str(Target.of(targets[0])), **asdict(ToTarget.of(reached))}


def lines_of(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The table of all rows for people: a header, then a line for each."""
    keys = list(rows[0]["values"])
    names = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    targets = _target_columns([row["target"] for row in rows if "target" in row])
    yield (*keys, "seeds", *names, *targets)
    for row in rows:
        cells = [_metric_cell(row["metrics"].get(name)) for name in names]
        cells += [_target_cell(row["target"], kind) for kind in targets.values()]
        yield (*(str(row["values"][key]) for key in keys), str(len(row["seeds"])), *cells)


def _target_columns(targets: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Title -> key of `ToTarget`: the round, and the seconds by the clock that counts."""
    if not targets:
        return {}
    virtual = any(one["virtual_seconds"] for one in targets)
    clock = {"virtual s to it": "virtual_seconds"} if virtual else {"seconds to it": "seconds"}
    return {f"round of {targets[0]['name']}": "round", **clock}


def _target_cell(target: Mapping[str, Any], kind: str) -> str:
    clocks = ("round", "seconds", "virtual_seconds")
    spreads = {clock: Spread(**target[clock]) if target[clock] else None for clock in clocks}
    summary = ToTarget(reached=target["reached"], runs=target["runs"], **spreads)
    return summary.format_spread(spreads[kind], lambda value: f"{value:.1f}")


def _numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a run that have a mean: its last metrics, and its seconds on the virtual clock."""
    metrics = {name: value for name, value in summary["metrics"].items() if isinstance(value, int | float)}
    virtual = summary["virtual_seconds"]
    return metrics if virtual is None else {**metrics, "virtual_seconds": virtual}


def _metric_cell(metric: Mapping[str, Any] | None) -> str:
    if metric is None:
        return "-"
    return f"{metric['mean']:.4f}" + ("" if metric["sd"] is None else f" ± {metric['sd']:.4f}")
