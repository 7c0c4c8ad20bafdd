"""What a comparison found, in sentences made from its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from fedcore.compare.report.cells import count, decimal, duration, mean_sd, percent, size
from fedcore.compare.report.document import Comparison
from fedcore.compare.report.summary import Spread, best_points, final, metric_of, per_worker, point_text
from fedcore.compare.results import RunResult
from fedcore.progress import epsilon_line

Runs: TypeAlias = Mapping[str, Sequence[RunResult]]


def headline(comparison: Comparison) -> tuple[str, ...]:
    """Sentences, the most important first; at least one."""
    runs = best_points(comparison)
    if not runs:
        return ("No mode finished.",)
    metric = metric_of(comparison)
    shared = {label: of for label, of in runs.items() if of[0].kind != "local"}
    found = [_best(shared or runs, metric), *_against_centralized(runs, metric)]
    if shared:
        found += _alone(runs, metric)
    found += [*_privacy(runs, metric), *_noise(runs), *_readable(runs)]
    return tuple(sentence for sentence in found if sentence)


def _best(runs: Runs, metric: str) -> str:
    spreads = {label: spread for label, of in runs.items() if (spread := final(of, metric)) and _finite(spread)}
    if not spreads:
        return f"No mode has a finite {metric}."
    choose = max if metric == "accuracy" else min
    top = choose(spreads.values(), key=lambda spread: spread.mean)
    shown = percent if metric == "accuracy" else decimal
    best = [label for label, spread in spreads.items() if shown(spread.mean) == shown(top.mean)]
    text = f"{_listed([_title(label, runs) for label in best])} {'ends' if len(best) == 1 else 'end'} best: "
    text += f"{metric} {_value(top, metric)}{_over(top.n)}."
    near = [
        label
        for label, spread in spreads.items()
        if label not in best and top.sd is not None and abs(spread.mean - top.mean) <= top.sd
    ]
    if near:
        text += f" Within one standard deviation: {_listed(near)}."
    return text


def _alone(runs: Runs, metric: str) -> list[str]:
    """Models of single sites are told apart: each is tested where it was trained."""
    spreads = {label: final(of, metric) for label, of in runs.items() if of[0].kind == "local"}
    return [
        f"{_title(label, runs)}: each site's own model has {metric} {_value(spread, metric)} on the site's own test "
        "examples, an easier test the more the sites differ."
        for label, spread in spreads.items()
        if spread and _finite(spread)
    ]


def _against_centralized(runs: Runs, metric: str) -> list[str]:
    """Secure modes against pooled data; plain ones only where there is no secure one."""
    pooled = [label for label in runs if _kind(runs, label) == "centralized"]
    federated = [label for label in runs if _kind(runs, label) == "federated"]
    federated = federated or [label for label in runs if _kind(runs, label) == "federated-plain"]
    return [_difference(runs, label, pooled[0], metric) for label in federated if pooled]


def _privacy(runs: Runs, metric: str) -> list[str]:
    """Each secure mode against the plain one with the same options."""
    pairs = [
        (label, label.replace("federated", "federated-plain", 1)) for label in runs if _kind(runs, label) == "federated"
    ]
    return [_cost_of_privacy(runs, secure, plain, metric) for secure, plain in pairs if plain in runs]


def _cost_of_privacy(runs: Runs, secure: str, plain: str, metric: str) -> str:
    sentence = f"Secure aggregation: {_difference(runs, secure, plain, metric).removesuffix('.')}"
    mine, theirs = (Spread.of(per_worker(run.bytes_up) for run in runs[label]) for label in (secure, plain))
    if mine and theirs:
        sentence += f"; a worker sends {size(mine.mean)} instead of {size(theirs.mean)}"
    mine, theirs = (Spread.of(run.seconds for run in runs[label]) for label in (secure, plain))
    if mine and theirs:
        sentence += f"; training takes {duration(mine.mean)} instead of {duration(theirs.mean)}"
    return f"{sentence}."


def _noise(runs: Runs) -> list[str]:
    sentences = []
    for label, of in runs.items():
        if (privacy := of[0].privacy) is not None:
            spent = max(run.privacy["epsilon"] for run in of if run.privacy is not None)
            plan = {**privacy, "epsilon": privacy["budget"]}
            sentences.append(f"{label}: {epsilon_line({'privacy': plan, 'epsilon': spent})}.")
    return sentences


def _readable(runs: Runs) -> list[str]:
    plain = [label for label, of in runs.items() if of[0].aggregation == "plain"]
    return [f"In {_listed(plain)} the server can read every update."] if plain else []


def _difference(runs: Runs, label: str, other: str, metric: str) -> str:
    """By seed, so that what both have in common does not count as spread."""
    values = {run.seed: run.accuracy if metric == "accuracy" else run.loss for run in runs[other]}
    pairs = [
        (run.accuracy if metric == "accuracy" else run.loss, values[run.seed])
        for run in runs[label]
        if run.seed in values
    ]
    spread = Spread.of(mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None)
    if spread is None or not _finite(spread):
        return f"{label} and {other} cannot be compared."
    unit, form = ("points of accuracy", percent) if metric == "accuracy" else ("of loss", decimal)
    size_of = Spread(mean=abs(spread.mean), sd=spread.sd, n=spread.n)
    text = f"{label} ends {mean_sd(size_of, form)} {unit} {'above' if spread.mean > 0 else 'below'} {other}"
    if form(size_of.mean) == form(0.0):
        text = f"{label} ends level with {other}"
    if spread.sd is None:
        return f"{text} (one seed: how much chance plays is not known)."
    small = abs(spread.mean) <= spread.sd
    return f"{text} ({'within' if small else 'more than'} one standard deviation over {count(spread.n)} seeds)."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _kind(runs: Runs, label: str) -> str:
    return runs[label][0].kind


def _title(label: str, runs: Runs) -> str:
    point = runs[label][0].point
    return f"{label} (with {point_text(point)})" if point else label


def _value(spread: Spread, metric: str) -> str:
    return f"{mean_sd(spread, percent)} %" if metric == "accuracy" else mean_sd(spread, decimal)


def _over(n: int) -> str:
    return f" over {n} seeds" if n > 1 else ", one seed"


def _finite(spread: Spread) -> bool:
    return math.isfinite(spread.mean)
