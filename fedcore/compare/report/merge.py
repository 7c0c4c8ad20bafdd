"""Several reports laid over one another."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedcore.compare.report.document import Comparison, SiteSplit, Source
from fedcore.errors import ConfigurationError


def read_reports(paths: Sequence[Path]) -> dict[str, Comparison]:
    """Comparisons by the names of their files, or of their folders where the files are all called the same.

    Raises ConfigurationError for a file that is not a report, or is named twice.
    """
    stems = [path.stem for path in paths]
    names = stems if len(set(stems)) == len(stems) else [path.absolute().parent.name for path in paths]
    if len(set(names)) != len(names):
        names = [str(path) for path in paths]
    if len(set(names)) != len(names) or not names:
        raise ConfigurationError("--from: name each report once, at least one")
    return {name: _read(path) for name, path in zip(names, paths, strict=True)}


def merge(comparisons: Mapping[str, Comparison]) -> Comparison:
    """One comparison with the runs of all. A label that several have gets the name of its report.

    What they do not share (data, machine, seeds, settings) is said by the checks of fairness. Other values are those of
    the first.
    """
    if len(comparisons) == 1:
        return next(iter(comparisons.values()))
    uses = Counter(mode.label for one in comparisons.values() for mode in one.modes)
    renamed = {
        name: {mode.label: f"{mode.label} ({name})" if uses[mode.label] > 1 else mode.label for mode in one.modes}
        for name, one in comparisons.items()
    }
    first = next(iter(comparisons.values()))
    return replace(
        first,
        app=" + ".join(dict.fromkeys(one.app for one in comparisons.values())),
        partition=" + ".join(dict.fromkeys(one.partition for one in comparisons.values())),
        seeds=tuple(sorted({seed for one in comparisons.values() for seed in one.seeds})),
        created=max(one.created for one in comparisons.values()),
        modes=tuple(
            replace(mode, label=renamed[name][mode.label]) for name, one in comparisons.items() for mode in one.modes
        ),
        runs=tuple(replace(run, mode=renamed[name][run.mode]) for name, one in comparisons.items() for run in one.runs),
        split=_splits(comparisons),
        sources=tuple(_source(name, one, renamed[name]) for name, one in comparisons.items()),
    )


def _read(path: Path) -> Comparison:
    try:
        return Comparison.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigurationError(f"--from: {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"--from: {path} is not a report.json of this version: {error}") from None


def _splits(comparisons: Mapping[str, Comparison]) -> tuple[SiteSplit, ...]:
    splits = {name: one.split for name, one in comparisons.items()}
    if all(split == next(iter(splits.values())) for split in splits.values()):
        return next(iter(splits.values()))
    return tuple(replace(site, site=f"{name}: {site.site}") for name, split in splits.items() for site in split)


def _source(name: str, one: Comparison, renamed: Mapping[str, str]) -> Source:
    return Source(
        name=name,
        app=one.app,
        sites=one.sites,
        partition=one.partition,
        seeds=one.seeds,
        run_config=one.run_config,
        settings=one.settings,
        network=one.network.name if one.network else "none",
        created=one.created,
        machine=one.machine,
        labels=tuple(renamed.values()),
    )
