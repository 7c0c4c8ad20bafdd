"""Which modes of a comparison are measured against each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from fedcore.comparison.modes import in_report
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.summary import JudgedMetric, Runs, best_points, finished, points_of
from fedcore.comparison.report.verdicts.claim import About, Claim, claim
from fedcore.comparison.results import RunResult

PROTECTIONS: Final = ("secure", "private", "plain")
"""The most protection first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """What federating is about.

    Together is the most protected federation there is: with secure aggregation, else private, else plain.

    together, alone, pooled: labels of modes, the best of each kind; "" if none is.
    """

    together: str
    alone: str = ""
    pooled: str = ""

    @classmethod
    def of(cls, runs: Runs, metric: JudgedMetric, apps: Mapping[str, Collection[str]]) -> Roles | None:
        """None if nothing federated has a finite metric.

        Args:
            apps: the labels of each app, if there are several: what federating is worth is a difference within one.
        """
        known = metric.finals(runs)

        def best(labels: Iterable[str]) -> str:
            return max((one for one in labels if one in known), key=lambda one: metric.rank(known[one]), default="")

        late = [label for label, of in runs.items() if in_report(of[0].kind).protection]
        groups = [*(protected(runs, protection) for protection in PROTECTIONS), late]
        together = next(filter(None, map(best, groups)), "")
        if not together:
            return None
        same = _same_app(apps, together, runs)
        alone, pooled = (
            best(label for label, of in runs.items() if label in same and getattr(in_report(of[0].kind), role))
            for role in ("alone", "pooled")
        )
        return cls(together=together, alone=alone, pooled=pooled)

    @property
    def labels(self) -> set[str]:
        """The modes that have one."""
        return {self.together, self.alone, self.pooled} - {""}


def _same_app(apps: Mapping[str, Collection[str]], label: str, runs: Runs) -> Collection[str]:
    """The modes of the app that has this one."""
    return next((labels for labels in apps.values() if label in labels), runs.keys())


def protected(runs: Runs, protection: str) -> list[str]:
    """Labels of the federated modes with this protection that train as `federated` does."""
    return [
        label
        for label, of in runs.items()
        if (about := in_report(of[0].kind)).protection == protection and "asynchrony" not in about.twins.values()
    ]


def claims_of(comparison: Comparison) -> tuple[Claim, ...]:
    """What the data say of every two modes that the headline compares; empty without anything to judge by."""
    metric, runs = JudgedMetric.of(comparison), best_points(comparison)
    if metric is None or not runs:
        return ()
    roles = Roles.of(runs, metric, comparison.apps)
    judged = {label: of for label, of in runs.items() if any(metric.at(run) is not None for run in of)}
    pairs = list(_pairs(comparison, judged, roles))
    rest = _best_pairs(runs, metric) if roles is None or runs.keys() - roles.labels else []
    # Both groups stand on one page: the best of all has a fifth of the chance to err, the story the rest of it. Chance
    # has no part in what should be equal, and of a gap there is only talk if sites alone are behind.
    share = 1.0 if not rest or not pairs else _STORY
    known = metric.finals(runs)
    worth = [about for about, mine, theirs in pairs if mine[0].mode in known and theirs[0].mode in known]
    number = max(1, sum(about not in ("secrecy", "gap") for about in worth)) / share
    made = [_exact(claim(about, mine, theirs, metric, claims=number)) for about, mine, theirs in pairs]
    wins = any(one.about == "alone" and one.verdict == "ahead" for one in made)
    made = [one if wins or one.about != "gap" else replace(one, verdict="open", needed=None) for one in made]
    # Whichever mode is the best, each of the others might be taken for it: one claim for each keeps it among those that
    # are not told apart from the best mean (Gupta 1965, "On some multiple decision (selection and ranking) rules").
    every = max(1, len(known) - 1) / (1.0 if not pairs else 1 - _STORY)
    return (*made, *(claim("best", mine, theirs, metric, claims=every) for mine, theirs in rest))


_STORY: Final = 0.8

_Pair: TypeAlias = tuple[About, Sequence[RunResult], Sequence[RunResult]]


def _pairs(comparison: Comparison, runs: Runs, roles: Roles | None) -> Iterator[_Pair]:
    if roles is not None:
        together, alone, pooled = (runs.get(label) for label in (roles.together, roles.alone, roles.pooled))
        if together and alone:
            yield "alone", together, alone
        if together and pooled:
            yield "pooled", together, pooled
        if pooled and alone:
            yield "gap", pooled, alone
        same = _same_app(comparison.apps, roles.together, runs)
        others = [one for one in protected(runs, "secure") or protected(runs, "plain") if one in same]
        yield from (("pooled", runs[one], pooled) for one in others if pooled and one != roles.together)
    yield from _twins(comparison, runs)


def _twins(comparison: Comparison, runs: Runs) -> Iterator[_Pair]:
    """Modes that differ in one thing alone, which has its effect on the metric."""
    by_kind = {(of[0].kind, _options(label, of[0].kind)): label for label, of in runs.items()}
    for label, of in runs.items():
        for kind, about in in_report(of[0].kind).twins.items():
            other = by_kind.get((kind, _options(label, of[0].kind)))
            at = () if other is None else _at(comparison, other, of[0])
            if at:
                yield about, of, at


def _options(label: str, kind: str) -> str:
    """The options in a label but for those that a twin cannot have."""
    rest = label.removeprefix(kind)
    bracket, end, report = rest.partition("]")
    words = [word for word in bracket.removeprefix("[").split(",") if word and not word.startswith(_OF_TWINS)]
    return ",".join(sorted(words)) + (report if end else "" if bracket.startswith("[") else bracket)


_OF_TWINS: Final = ("dp-", "buffer-size", "max-staleness")


def _at(comparison: Comparison, label: str, run: RunResult) -> Sequence[RunResult]:
    """Runs of a mode at the point of the sweep at which this run was; none if there are none."""
    points = points_of(one for one in finished(comparison.runs) if one.mode == label)
    return next((of for of in points.values() if of[0].point == run.point), ())


def _best_pairs(runs: Runs, metric: JudgedMetric) -> list[tuple[Sequence[RunResult], Sequence[RunResult]]]:
    """The mode with the best mean against all others."""
    known = metric.finals(runs)
    top = max(known, key=lambda label: metric.rank(known[label]), default="")
    return [(runs[top], of) for label, of in runs.items() if top and label in known and label != top]


def _exact(made: Claim) -> Claim:
    """Of secrecy the claim is that nothing differs, which chance has no part in."""
    if made.about != "secrecy" or made.lead is None:
        return made
    same = made.lead == 0 and not made.sd
    return replace(made, verdict="equal" if same else "differs", needed=None)
