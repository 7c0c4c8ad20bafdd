"""What was compared, and with which settings, as rows of a name and a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedcore.comparison.report.chance import ChanceLevel
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.summary import NONE, duration, percent


def settings_rows(comparison: Comparison) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """What was compared, and with which settings; then the settings that are as the app or fedcore has them."""
    rows = [
        ("app", comparison.app),
        ("sites", str(comparison.sites)),
        ("partition", comparison.partition or NONE),
        ("seeds", ", ".join(map(str, comparison.seeds))),
        ("judged by", _judged_by(comparison)),
        *([("without learning", _without_learning(level))] if (level := ChanceLevel.of(comparison)) else []),
        *([("target", str(comparison.target))] if comparison.target else []),
        ("network", comparison.network.name if comparison.network else "none: this machine as it is"),
    ]
    if comparison.network is not None:
        rows.append(("links", _links(comparison)))
    if comparison.cost is not None:
        cost = comparison.cost
        rows.append(("computation", f"{duration(cost.step)} a step and {duration(cost.example)} for each example"))
    usual: list[tuple[str, str]] = []
    for what, values in _settings(comparison):
        for key, value in values.items():
            swept = ", ".join(dict.fromkeys(str(run.point[key]) for run in comparison.runs if key in run.point))
            (rows if swept or key in comparison.changed else usual).append((f"{what}: {key}", swept or str(value)))
    return rows, usual


def _settings(comparison: Comparison) -> list[tuple[str, Mapping[str, Any]]]:
    """Run config and settings, and in a report of several apps those of each."""
    if not comparison.apps:
        return [("run config", comparison.run_config), ("setting", comparison.settings)]
    by_app = {source.app: source for source in comparison.sources}
    return [
        (f"{what} of {app}", values)
        for app, source in by_app.items()
        for what, values in (("run config", source.run_config), ("setting", source.settings))
    ]


def _judged_by(comparison: Comparison) -> str:
    judged_by = comparison.judged_by
    if judged_by is None:
        return NONE
    return f"{judged_by.name}, {'more' if judged_by.better == 'max' else 'less'} is better"


def _without_learning(level: ChanceLevel) -> str:
    of = "test" if level.tested else "training"
    return (
        f"accuracy {percent(level.uniform)} % by chance among {level.classes} classes, {percent(level.majority)} % by "
        f"always predicting the majority class, {level.label}; {percent(level.own)} % if each site predicts its own "
        f"majority class, on its own examples, mean over the sites (shares of the first seed's {of} examples)"
    )


def _links(comparison: Comparison) -> str:
    network = comparison.network
    if network is None:
        return NONE
    text = (
        f"{network.bandwidth / 1e6:g} Mbit/s and {duration(network.latency)} one way for each site, "
        f"{network.server / 1e6:g} Mbit/s for the server"
    )
    text += "".join(f"; client-{site + 1} computes {factor:g} times slower" for site, factor in network.slow.items())
    chance, slower = network.transient
    return text + (f"; {100 * chance:g} % of the steps take {slower:g} times as long" if chance else "")
