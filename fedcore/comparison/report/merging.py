"""Several comparisons as one: what differs between them is a seed, a point of a sweep, or a mode of its own.

Runs of one mode belong together if their reports have the same app, data, network, budget and evaluation. A key of the
run config or of the settings whose value differs between these is an axis, as if `--set` had swept over it; so is the
number of clients. Modes that differ in the network alone have its name. What would then be the same run twice stays
apart, by the names of the reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from fedcore.comparison.modes import in_report
from fedcore.comparison.report.document import Comparison, MergedReport, ModeTitle, SiteSplit
from fedcore.comparison.results import Value

CLIENTS_KEY: Final = "clients"
"""The axis of the number of sites."""
_OF_SOURCE: Final = ("app", "sites", "partition", "seeds", "run_config", "settings", "created", "machine")
_PARTITION: Final = "partition"
# Seeds are no axis, and the mode has the way of aggregation in its name.
_NO_AXES: Final = frozenset({"seed", "aggregation"})
_Mode: TypeAlias = tuple[str, str]
"""A mode of one of the reports: the report's name, and its label there."""


def merge(comparisons: Mapping[str, Comparison]) -> Comparison:
    """Merge comparisons, by their names, into one with the runs of all.

    The checks of fairness say what they do not share. Other values are those of the first.
    """
    if len(comparisons) == 1:
        return next(iter(comparisons.values()))
    labels, points = _places(comparisons)
    every = list(comparisons.values())
    mixed = len({one.own_evaluation for one in every}) > 1
    return replace(
        every[0],
        app=" + ".join(dict.fromkeys(one.app for one in every)),
        partition=" + ".join(dict.fromkeys(one.partition for one in every)),
        changed=tuple(dict.fromkeys(key for one in every for key in one.changed)),
        seeds=tuple(sorted({seed for one in every for seed in one.seeds})),
        created=max(one.created for one in every),
        modes=_modes(
            replace(
                mode,
                label=labels[name, mode.label],
                own_evaluation=mode.own_evaluation or (mixed and comparisons[name].own_evaluation),
            )
            for name, mode in _all_modes(comparisons)
        ),
        runs=tuple(
            replace(run, mode=labels[name, run.mode], point={**points[name, run.mode], **run.point})
            for name, one in comparisons.items()
            for run in one.runs
        ),
        left_out=tuple(dict.fromkeys(text for one in every for text in one.left_out)),
        own_evaluation=all(one.own_evaluation for one in every),
        split=_splits(comparisons),
        definitions={name: text for one in every for name, text in one.definitions.items()},
        sum_checks=tuple(
            replace(check, mode=labels[name, check.mode], plain=labels.get((name, check.plain), ""))
            for name, one in comparisons.items()
            for check in one.sum_checks
        ),
        sources=tuple(
            MergedReport(
                name=name,
                network=one.network.name if one.network else "none",
                metric=f"{one.judged_by.name}:{one.judged_by.better}" if one.judged_by else "",
                labels=tuple(labels[name, label] for label in one.labels),
                **{key: getattr(one, key) for key in _OF_SOURCE},
            )
            for name, one in comparisons.items()
        ),
    )


def pool(comparisons: Sequence[tuple[Mapping[str, Value], Comparison]]) -> Comparison:
    """One comparison of runs that one command made one after another, each at its point of a sweep.

    Args:
        comparisons: at least one.
    """
    every = [one for _, one in comparisons]
    swept = {key: dict.fromkeys(point[key] for point, _ in comparisons) for key in comparisons[0][0]}
    axes = [key for key, values in swept.items() if len(values) > 1 and key not in _NO_AXES]
    return replace(
        every[0],
        changed=tuple(dict.fromkeys(key for one in every for key in one.changed)),
        seeds=tuple(dict.fromkeys(seed for one in every for seed in one.seeds)),
        created=max(one.created for one in every),
        modes=_modes(mode for one in every for mode in one.modes),
        runs=tuple(
            replace(run, point={key: point[key] for key in axes}) for point, one in comparisons for run in one.runs
        ),
        sum_checks=tuple(check for one in every for check in one.sum_checks),
    )


def _all_modes(comparisons: Mapping[str, Comparison]) -> list[tuple[str, ModeTitle]]:
    return [(name, mode) for name, one in comparisons.items() for mode in one.modes]


def _modes(modes: Iterable[ModeTitle]) -> tuple[ModeTitle, ...]:
    """Each label once, in the order of their first use."""
    by_label: dict[str, ModeTitle] = {}
    for mode in modes:
        by_label.setdefault(mode.label, mode)
    return tuple(by_label.values())


def _places(comparisons: Mapping[str, Comparison]) -> tuple[dict[_Mode, str], dict[_Mode, Mapping[str, Value]]]:
    """Label and point of each mode of each report, in the whole."""
    groups: dict[tuple[str, Any], list[_Mode]] = {}
    for name, mode in _all_modes(comparisons):
        conditions = (*_conditions(comparisons[name], mode), str(comparisons[name].network))
        groups.setdefault((mode.label, conditions), []).append((name, mode.label))
    points: dict[_Mode, Mapping[str, Value]] = {}
    apart: list[list[_Mode]] = []
    for places in groups.values():
        axes = _axes([comparisons[name] for name, _ in places], comparisons[places[0][0]], places[0][1])
        ways = {source: {key: _value(comparisons[source[0]], key) for key in axes} for source in places}
        if _same_twice(comparisons, ways):
            apart += [[source] for source in places]
        else:
            apart.append(places)
            points |= ways
    return _labels(comparisons, apart), {source: {} for places in apart for source in places} | points


def _conditions(one: Comparison, mode: ModeTitle) -> tuple[Any, ...]:
    """What runs of a mode need to have in common to be its seeds and points, without the network."""
    chosen = _PARTITION in one.run_config
    return (
        mode.kind, mode.simulation, one.app, tuple(sorted({*one.run_config, *one.settings})),
        "" if chosen else one.partition, one.own_evaluation, one.budget, str(one.tune),
    )  # fmt: skip


def _axes(comparisons: Sequence[Comparison], first: Comparison, label: str) -> list[str]:
    """The keys in which they differ, as far as they matter to the mode."""
    kind = next(mode.kind for mode in first.modes if mode.label == label)
    keys = [*first.run_config, *(first.settings if in_report(kind).protection else ()), CLIENTS_KEY]
    swept = {key for one in comparisons for run in one.runs for key in run.point}
    return [
        key
        for key in dict.fromkeys(keys)
        if key not in _NO_AXES | swept and len({str(_value(one, key)) for one in comparisons}) > 1
    ]


def _value(one: Comparison, key: str) -> Value:
    value: Value = one.sites if key == CLIENTS_KEY else {**one.settings, **one.run_config}[key]
    return value


def _same_twice(comparisons: Mapping[str, Comparison], ways: Mapping[_Mode, Mapping[str, Value]]) -> bool:
    """Whether two of the runs would have the same point and seed."""
    uses = Counter(
        (str({**point, **run.point}), run.seed)
        for (name, label), point in ways.items()
        for run in comparisons[name].runs
        if run.mode == label
    )
    return any(number > 1 for number in uses.values())


def _labels(comparisons: Mapping[str, Comparison], groups: Sequence[Sequence[_Mode]]) -> dict[_Mode, str]:
    """A label for each group: its own, and if several have the same, with what tells them apart."""
    uses = Counter(places[0][1] for places in groups)
    simulations = Counter(places[0][1] for places in groups if _is_simulation(comparisons, places[0]))
    networks = {label for label, number in uses.items() if number > 1 and _networks_alone(comparisons, groups, label)}
    labels: dict[_Mode, str] = {}
    for places in groups:
        label = places[0][1]
        if uses[label] == 1:
            text = label
        elif label in networks:
            network = comparisons[places[0][0]].network
            text = f"{label} ({network.name})" if network else label
        elif uses[label] == 2 and simulations[label] == 1:
            text = f"{label} (simulation)" if _is_simulation(comparisons, places[0]) else label
        else:
            text = f"{label} ({', '.join(name for name, _ in places)})"
        labels |= dict.fromkeys(places, text)
    return labels


def _networks_alone(comparisons: Mapping[str, Comparison], groups: Sequence[Sequence[_Mode]], label: str) -> bool:
    """Whether the groups of a label have a network each, and all else in common."""
    firsts = [comparisons[places[0][0]] for places in groups if places[0][1] == label]
    modes = [next(mode for mode in one.modes if mode.label == label) for one in firsts]
    conditions = {
        (_conditions(one, mode), *(str(_value(one, key)) for key in (*one.run_config, CLIENTS_KEY) if key != "seed"))
        for one, mode in zip(firsts, modes, strict=True)
    }
    return len(conditions) == 1 and len({one.network.name if one.network else "" for one in firsts}) == len(firsts)


def _is_simulation(comparisons: Mapping[str, Comparison], source: _Mode) -> bool:
    name, label = source
    return any(mode.simulation for mode in comparisons[name].modes if mode.label == label)


def _splits(comparisons: Mapping[str, Comparison]) -> tuple[SiteSplit, ...]:
    first, *others = (one.split for one in comparisons.values())
    if all(split == first for split in others):
        return first
    return tuple(replace(site, site=f"{name}: {site.site}") for name, one in comparisons.items() for site in one.split)
