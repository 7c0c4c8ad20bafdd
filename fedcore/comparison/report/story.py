"""The summary of a comparison in sentences, made from its figures.

What the sites reach together, each alone and with pooled data comes first; then what else there is to know.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from fedcore.comparison.app_evaluation import CLIENTS
from fedcore.comparison.judging import known_by_name, listed
from fedcore.comparison.modes import in_report
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.fairness import secrecy_sentences
from fedcore.comparison.report.summary import (
    JudgedMetric,
    Spread,
    best_points,
    duration,
    mean_sd,
    per_worker,
    point_text,
)
from fedcore.comparison.results import RunResult
from fedcore.monitoring.formatting import size
from fedcore.monitoring.progress import epsilon_line

Runs: TypeAlias = Mapping[str, Sequence[RunResult]]
_ROUNDS_NAMED: Final = 8
OWN_EVALUATION: Final = "The metrics are those that the app's own evaluation reports, weighted as the app says."
_SERVER_VIEWS: Final = {
    "secure": "the server saw only sums",
    "private": "the server saw only sums with noise in them",
    "plain": "the server could read every update",
}


def headline(comparison: Comparison) -> tuple[str, ...]:
    """Sentences, the most important first; at least one."""
    return (*secrecy_sentences(comparison), *_of_figures(comparison))


def _of_figures(comparison: Comparison) -> tuple[str, ...]:
    """What the figures say, whether or not they can be trusted."""
    runs = best_points(comparison)
    if not runs:
        return ("No mode finished.",)
    metric = JudgedMetric.of(comparison)
    if metric is None:
        return (_nothing_to_judge_by(comparison), *_left_out(runs), *_privacy(runs), *_readable(runs))
    story = Story.of(runs, metric)
    return (
        *(story.sentences() if story else ()),
        *([_best(runs, metric)] if story is None or runs.keys() - story.labels else []),
        *_left_out(runs),
        *_against_pooled(runs, metric, except_label=story.together if story and story.alone and story.pooled else ""),
        *_own_tests(runs, metric),
        *_secrecy(runs, metric),
        *_privacy(runs),
        *_readable(runs),
        *_gaps(runs, metric, own=comparison.own_evaluation),
        *([_own_evaluation(comparison, metric)] if comparison.own_evaluation else []),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What federating is about.

    Together is the most protected federation there is: with secure aggregation, else private, else plain.

    together, alone, pooled: labels of modes, the best of each kind; "" if none is.
    """

    runs: Runs
    metric: JudgedMetric
    together: str
    alone: str = ""
    pooled: str = ""

    @classmethod
    def of(cls, runs: Runs, metric: JudgedMetric) -> Story | None:
        """None if nothing federated has a finite metric."""
        known = _finals(runs, metric)

        def best(labels: Iterable[str]) -> str:
            return max((one for one in labels if one in known), key=lambda one: metric.rank(known[one]), default="")

        together = next(filter(None, (best(_protected(runs, protection)) for protection in _SERVER_VIEWS)), "")
        if not together:
            return None
        alone, pooled = (
            best(label for label, of in runs.items() if getattr(in_report(of[0].kind), role))
            for role in ("alone", "pooled")
        )
        return cls(runs=runs, metric=metric, together=together, alone=alone, pooled=pooled)

    @property
    def labels(self) -> set[str]:
        """The modes that it tells of."""
        return {self.together, self.alone, self.pooled} - {""}

    def sentences(self) -> list[str]:
        """What each reaches; and where sites alone were compared, what federating is worth."""
        return [self._reached(), *([self._worth()] if self.alone else [])]

    def _reached(self) -> str:
        protection = in_report(self.runs[self.together][0].kind).protection
        which = f" ({self.together})" if len(_protected(self.runs, protection)) > 1 else ""
        texts = {label: self.metric.format_spread(spread) for label, spread in _finals(self.runs, self.metric).items()}
        first = texts[self.together]
        first = f"{first} {self.metric.name}" if self.metric.percent else f"{self.metric.name} {first}"
        text = f"Together{which} {first}"
        if self.alone:
            text += f", each site alone {texts[self.alone]} on everyone's test data"
        if self.pooled:
            text += f", pooled {texts[self.pooled]}"
        return f"{text}; {_SERVER_VIEWS[protection]}."

    def _worth(self) -> str:
        won = self._lead(self.together, self.alone)
        if won is None:
            return f"{self.together} and {self.alone} have no seed in common."
        form, by = self.metric.form, self._by(won)
        if form(won.mean) == form(0.0) or form(won.mean) == form(-0.0):
            return f"Federating is level with sites alone ({_chance(won)})."
        if won.sd is not None and abs(won.mean) <= won.sd:
            return f"Federating and sites alone are apart by {by}, {_chance(won)}: do not build on it."
        if won.mean < 0:
            return f"Here federating does not pay: sites alone are ahead by {by} ({_chance(won)})."
        return f"Federating wins over sites alone by {by}{self._closed(won)} ({_chance(won)})."

    def _closed(self, won: Spread) -> str:
        """How much of the gap between sites alone and pooled data federating closes."""
        gap = self._lead(self.pooled, self.alone) if self.pooled else None
        left = self._lead(self.pooled, self.together) if self.pooled else None
        if gap is None or left is None:
            return ""
        form = self.metric.form
        if gap.mean <= 0 or form(gap.mean) == form(0.0):
            return ", more than pooled data do"
        if left.mean <= 0 or form(left.mean) == form(0.0):
            return " and closes the whole gap to pooled data"
        return f" and closes {100 * won.mean / gap.mean:.0f} % of the gap to pooled data; {self._by(left)} are left"

    def _lead(self, label: str, other: str) -> Spread | None:
        """By how much better a mode is than another, seed by seed."""
        spread = _apart(self.runs, label, other, self.metric)
        return None if spread is None else Spread(mean=self.metric.sign * spread.mean, sd=spread.sd, n=spread.n)

    def _by(self, spread: Spread) -> str:
        by = Spread(mean=abs(spread.mean), sd=spread.sd, n=spread.n)
        return f"{mean_sd(by, self.metric.form)} {self.metric.unit}"


def _own_evaluation(comparison: Comparison, metric: JudgedMetric) -> str:
    """Whose evaluation the metric is from, where it is not ours."""
    if metric.name not in {name for run in comparison.runs for name in run.by_server}:
        return OWN_EVALUATION
    text = f"{metric.name} is what the evaluate_fn of the ServerApp gives, on the same examples in every mode"
    apart = dict.fromkeys(name for run in comparison.runs for name in run.metrics if name.startswith(CLIENTS))
    own = f"; {_listed(list(apart))} {'are' if len(apart) > 1 else 'is'} what its clients report" if apart else ""
    return f"{text}{own}."


def _gaps(runs: Runs, metric: JudgedMetric, *, own: bool) -> list[str]:
    """Rounds whose models nobody evaluated, or too few."""
    labels: dict[tuple[int, ...], list[str]] = {}
    for label, of in runs.items():
        points = [point for run in of for point in run.curve if point.round]
        absent = {point.round for point in points if metric.at(point) is None}
        if absent and absent < {point.round for point in points}:
            labels.setdefault(tuple(sorted(absent)), []).append(label)
    why = f"the app reports no {metric.name} of" if own else "not every site evaluated the models of"
    return [
        f"In {_listed(names)} {why} {_rounds(absent)}: the curves have no point there."
        for absent, names in labels.items()
    ]


def _rounds(numbers: Sequence[int]) -> str:
    if len(numbers) > _ROUNDS_NAMED:
        return f"{len(numbers)} rounds between {numbers[0]} and {numbers[-1]}"
    return f"round{'s' if len(numbers) > 1 else ''} {_listed([str(number) for number in numbers])}"


def _nothing_to_judge_by(comparison: Comparison) -> str:
    names = known_by_name(name for run in comparison.runs for name in run.metrics)
    if not names:
        return "Nothing was evaluated, so that the modes cannot be compared."
    return f"No metric says whether more of it is better; {listed(names)}. Name one: --metric {next(iter(names))}:max"


def _best(runs: Runs, metric: JudgedMetric) -> str:
    spreads = _finals(runs, metric)
    if not spreads:
        return f"No mode has a finite {metric.name}."
    top = max(spreads.values(), key=metric.rank)
    best = [label for label, spread in spreads.items() if metric.form(spread.mean) == metric.form(top.mean)]
    over = f"over {top.n} seeds" if top.n > 1 else "one seed"
    text = f"{_listed([_title(label, runs) for label in best])} {'ends' if len(best) == 1 else 'end'} best: "
    text += f"{metric.name} {metric.format_spread(top)}{' ' if top.n > 1 else ', '}{over}."
    near = [
        label
        for label, spread in spreads.items()
        if label not in best and top.sd is not None and abs(spread.mean - top.mean) <= top.sd
    ]
    return text + (f" Within one standard deviation: {_listed(near)}." if near else "")


def _finals(runs: Runs, metric: JudgedMetric) -> dict[str, Spread]:
    """Spreads over the last models, if known and finite."""
    finals = {label: metric.final(of) for label, of in runs.items()}
    return {label: spread for label, spread in finals.items() if spread is not None and math.isfinite(spread.mean)}


def _own_tests(runs: Runs, metric: JudgedMetric) -> list[str]:
    """What sites alone have on their own test examples, next to what a common model has there."""
    own = {label: Spread.of(map(metric.own, of)) for label, of in runs.items()}
    common = "".join(
        f", and the one of {label} {metric.format_spread(spread)}"
        for label in [*_protected(runs, "secure"), *_protected(runs, "plain")][:1]
        if (spread := own[label]) is not None
    )
    test = "on its own site's test examples, an easier test the more the sites differ"
    return [
        f"{_title(label, runs)}: {test}, a site's own model has {metric.name} {metric.format_spread(spread)}{common}."
        for label, of in runs.items()
        if in_report(of[0].kind).alone and (spread := own[label]) is not None
    ]


def _against_pooled(runs: Runs, metric: JudgedMetric, except_label: str) -> list[str]:
    """Secure modes against pooled data, else plain ones.

    Args:
        except_label: of which it was said before.
    """
    pooled = [label for label, of in runs.items() if in_report(of[0].kind).pooled]
    federated = _protected(runs, "secure") or _protected(runs, "plain")
    return [_difference(runs, label, pooled[0], metric) for label in federated if pooled and label != except_label]


def _protected(runs: Runs, protection: str) -> dict[str, str]:
    """Labels of the federated modes with this protection, each with the options after the mode's name."""
    return {
        label: label.removeprefix(of[0].kind)
        for label, of in runs.items()
        if in_report(of[0].kind).protection == protection
    }


def _secrecy(runs: Runs, metric: JudgedMetric) -> list[str]:
    """Each secure mode against the plain one with the same options."""
    plain = {options: label for label, options in _protected(runs, "plain").items()}
    return [
        _cost_of_secrecy(runs, label, plain[options], metric)
        for label, options in _protected(runs, "secure").items()
        if options in plain
    ]


def _cost_of_secrecy(runs: Runs, secure: str, plain: str, metric: JudgedMetric) -> str:
    sentence = f"Secure aggregation: {_difference(runs, secure, plain, metric).removesuffix('.')}"
    mine, theirs = (Spread.of(per_worker(run.bytes_up) for run in runs[label]) for label in (secure, plain))
    if mine and theirs:
        sentence += f"; a worker sends {size(mine.mean)} instead of {size(theirs.mean)}"
    mine, theirs = (Spread.of(run.seconds for run in runs[label]) for label in (secure, plain))
    if mine and theirs:
        sentence += f"; training takes {duration(mine.mean)} instead of {duration(theirs.mean)}"
    return f"{sentence}."


def _privacy(runs: Runs) -> list[str]:
    return [
        f"{label}: {epsilon_line(of[0].privacy, max(run.epsilon_spent or 0.0 for run in of))}."
        for label, of in runs.items()
        if of[0].privacy is not None
    ]


def _left_out(runs: Runs) -> list[str]:
    """Sites whose data had no part in a model, by mode and seed."""
    failures = []
    for label, of in runs.items():
        absent = {
            run.seed: [name for name, count in run.sums.items() if not count] for run in of if any(run.sums.values())
        }
        for names in dict.fromkeys(map(tuple, filter(None, absent.values()))):
            seeds = [str(seed) for seed, missing in absent.items() if tuple(missing) == names]
            when = f" with seed{'s' if len(seeds) > 1 else ''} {_listed(seeds)}" if len(of) > 1 else ""
            were = "were" if len(names) > 1 else "was"
            failures.append(
                f"In {label}{when} {_listed(names)} {were} in no sum: the model has learnt nothing from there."
            )
    return failures


def _readable(runs: Runs) -> list[str]:
    plain = [label for label, of in runs.items() if of[0].aggregation == "plain"]
    return [f"In {_listed(plain)} the server can read every update."] if plain else []


def _apart(runs: Runs, label: str, other: str, metric: JudgedMetric) -> Spread | None:
    """Taken seed by seed, so that what both have in common does not count as spread."""
    theirs = {run.seed: metric.at(run) for run in runs[other]}
    pairs = [(metric.at(run), theirs[run.seed]) for run in runs[label] if run.seed in theirs]
    spread = Spread.of(mine - other for mine, other in pairs if mine is not None and other is not None)
    return spread if spread is not None and math.isfinite(spread.mean) else None


def _difference(runs: Runs, label: str, other: str, metric: JudgedMetric) -> str:
    spread = _apart(runs, label, other, metric)
    if spread is None:
        return f"{label} and {other} cannot be compared."
    by = Spread(mean=abs(spread.mean), sd=spread.sd, n=spread.n)
    if metric.form(by.mean) == metric.form(0.0):
        return f"{label} ends level with {other} ({_chance(spread)})."
    text = f"{label} ends {mean_sd(by, metric.form)} {metric.unit} {'above' if spread.mean > 0 else 'below'} {other}"
    # Of an accuracy everyone knows which is better; and what is within the spread is neither.
    obvious = metric.percent or (spread.sd is not None and by.mean <= spread.sd)
    verdict = "" if obvious else f", which is {'better' if metric.sign * spread.mean > 0 else 'worse'}"
    return f"{text} ({_chance(spread)}){verdict}."


def _chance(spread: Spread) -> str:
    """How much of a difference chance may be."""
    if spread.sd is None:
        return "one seed: how much chance plays is not known"
    within = "within" if abs(spread.mean) <= spread.sd else "more than"
    return f"{within} one standard deviation over {spread.n} seeds"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _title(label: str, runs: Runs) -> str:
    point = runs[label][0].point
    return f"{label} (with {point_text(point)})" if point else label
