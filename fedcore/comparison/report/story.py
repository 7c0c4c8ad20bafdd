"""The summary of a comparison in sentences, made from its figures.

What the sites reach together, each alone and with pooled data comes first; then what else there is to know. A sentence
says "wins" or "loses" only where the claim behind it does (`fedcore.comparison.report.verdicts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fedcore.comparison.app_evaluation import CLIENTS
from fedcore.comparison.judging import known_by_name, listed
from fedcore.comparison.modes import in_report
from fedcore.comparison.report.conditions import at_what, conditions
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.fairness import secrecy_sentences
from fedcore.comparison.report.sites import site_sentences
from fedcore.comparison.report.summary import (
    JudgedMetric,
    Runs,
    Spread,
    best_points,
    duration,
    listed_names,
    mean_sd,
    per_worker,
    point_text,
)
from fedcore.comparison.report.verdicts import About, Claim, Roles, claims_of, instability, protected
from fedcore.comparison.results import RunResult
from fedcore.monitoring.formatting import size
from fedcore.monitoring.progress import epsilon_line

_ROUNDS_NAMED: Final = 8
OWN_EVALUATION: Final = "The metrics are those that the app's own evaluation reports, weighted as the app says."
_SERVER_VIEWS: Final = {
    "secure": "the server saw only sums",
    "private": "the server saw only sums with noise in them",
    "plain": "the server could read every update",
}
_TWINS: Final[Mapping[About, str]] = {
    "asynchrony": "Waiting for nobody",
    "privacy": "The noise of differential privacy",
}
_SURE: Final = "95 %"


def headline(comparison: Comparison) -> tuple[str, ...]:
    """Sentences, the most important first; at least one."""
    first, *others = _of_figures(comparison)
    return (*secrecy_sentences(comparison), first, *_simulation(comparison), *others)


def _simulation(comparison: Comparison) -> list[str]:
    """What was only simulated."""
    if not comparison.simulations:
        return []
    what = (
        "All of it is a simulation" if comparison.is_simulation else f"Simulated: {', '.join(comparison.simulations)}"
    )
    return [f"{what}: no bytes went over a network, and the clients shared one machine and its seconds."]


def _of_figures(comparison: Comparison) -> tuple[str, ...]:
    """What the figures say, whether or not they can be trusted."""
    runs = best_points(comparison)
    if not runs:
        return ("No mode finished.",)
    metric = JudgedMetric.of(comparison)
    if metric is None:
        return (_nothing_to_judge_by(comparison), *_left_out(runs), *_privacy(runs), *_readable(runs))
    roles, claims = Roles.of(runs, metric, comparison.apps), claims_of(comparison)
    otherwise, own_tests = _own_tests(runs, metric, roles, claims)
    budget = at_what(comparison, runs, roles.pooled, roles.together) if roles and roles.pooled else ""
    several = bool(comparison.apps)
    story = Story(runs=runs, metric=metric, roles=roles, claims=claims, budget=budget, named=several) if roles else None
    return (
        *(story.first() if story else ()),
        *_other_apps(comparison, runs, metric, roles),
        *otherwise,
        *conditions(comparison, runs, metric, _words(runs, roles)),
        *(story.pooled() if story else ()),
        *([_best(runs, metric, claims)] if roles is None or runs.keys() - roles.labels else []),
        *instability(comparison, runs, metric),
        *_left_out(runs),
        *own_tests,
        *(_cost_of_secrecy(comparison, runs, one, metric) for one in claims if one.about == "secrecy"),
        *(f"{_TWINS[one.about]}: {sentence(one, metric)}" for one in claims if one.about in _TWINS),
        *_privacy(runs),
        *_readable(runs),
        *_gaps(runs, metric, own=comparison.own_evaluation),
        *_own_evaluation(comparison, metric),
        *(f"Left out: {text}." for text in comparison.left_out),
    )


def _other_apps(comparison: Comparison, runs: Runs, metric: JudgedMetric, roles: Roles | None) -> Iterator[str]:
    """What the other apps of the report reach."""
    for labels in comparison.apps.values():
        own = {label: of for label, of in runs.items() if label in labels}
        others = Roles.of(own, metric, {})
        if others is not None and (roles is None or others.together != roles.together):
            yield Story(runs=own, metric=metric, roles=others, claims=(), named=True).first()[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What the sites reach together, and what federating is worth.

    budget: what pooled data had more or less of, after their figure; "" for nothing.
    named: whether the federation is called by its label, as among several apps.
    """

    runs: Runs
    metric: JudgedMetric
    roles: Roles
    claims: Sequence[Claim]
    budget: str = ""
    named: bool = False

    def first(self) -> list[str]:
        """What each reaches, then what federating is worth."""
        worth, gap = self._of("alone"), self._of("gap")
        return [self._reached(), *([f"{self._worth(worth)}{self._closed(worth, gap)}."] if worth else [])]

    def pooled(self) -> list[str]:
        """What is left to pooled data, as far as it was not said before."""
        left = [one for one in self.claims if one.about == "pooled" and not (self._tells_gap() and self._is_ours(one))]
        return [sentence(one, self.metric) for one in left]

    def _of(self, about: About) -> Claim | None:
        return next((one for one in self.claims if one.about == about), None)

    def _is_ours(self, one: Claim) -> bool:
        return one.label == self.roles.together

    def _reached(self) -> str:
        roles = self.roles
        protection = in_report(self.runs[roles.together][0].kind).protection
        which = f" ({roles.together})" if self.named or len(protected(self.runs, protection)) > 1 else ""
        texts = {label: self.metric.format_spread(spread) for label, spread in self.metric.finals(self.runs).items()}
        first = texts[roles.together]
        first = f"{first} {self.metric.name}" if self.metric.percent else f"{self.metric.name} {first}"
        text = f"Together{which} {first}"
        if roles.alone:
            text += f", each site alone {texts[roles.alone]} on everyone's test data"
        if roles.pooled:
            text += f", {pooled_name(self.runs, roles)} {texts[roles.pooled]}{self.budget}"
        return f"{text}; {_SERVER_VIEWS[protection]}."

    def _worth(self, one: Claim) -> str:
        by, sure = amount(one, self.metric), certainty(one, self.metric)
        if one.lead is None:
            return f"Federating and sites alone cannot be compared: {_why_not(one)}"
        if one.verdict == "ahead":
            return f"Federating wins over sites alone by {by} ({sure})"
        if one.verdict == "behind":
            return f"Here federating does not pay: it loses to sites alone by {by} ({sure})"
        return undecided(one, self.metric, "federating", "sites alone")

    def _tells_gap(self) -> bool:
        """Whether what is left to pooled data is said together with what federating is worth."""
        verdicts = {one.about: one.verdict for one in reversed(self.claims)}
        return (verdicts.get("alone"), verdicts.get("gap"), verdicts.get("pooled")) == ("ahead", "ahead", "behind")

    def _closed(self, worth: Claim, gap: Claim | None) -> str:
        """How much of the gap between sites alone and pooled data federating closes; of noise there is no share."""
        left = self._of("pooled")
        if gap is None or left is None or worth.verdict != "ahead":
            return ""
        if self._tells_gap() and worth.lead is not None and gap.lead:
            return (
                f" and closes {100 * worth.lead / gap.lead:.0f} % of the gap to {self._pooled()}; "
                f"{amount(left, self.metric)} are left ({certainty(left, self.metric)})"
            )
        if gap.verdict == "open":
            return f"; {self._pooled()} and sites alone are {_open(gap)}, so that there may be no gap to close"
        return ""

    def _pooled(self) -> str:
        name = pooled_name(self.runs, self.roles)
        return "pooled data" if name == "pooled" else name


def pooled_name(runs: Runs, roles: Roles) -> str:
    """ "pooled" if all data were: the app's own loop may read any part of them, and nobody counts what it takes."""
    is_known = all(run.samples is not None for run in runs.get(roles.pooled, ()))
    return "pooled" if is_known else roles.pooled


def _words(runs: Runs, roles: Roles | None) -> dict[str, str]:
    """What the first sentence calls the modes."""
    if roles is None:
        return {}
    called = {roles.alone: "each site alone", roles.pooled: pooled_name(runs, roles), roles.together: "together"}
    return {label: word for label, word in called.items() if label}


def sentence(one: Claim, metric: JudgedMetric) -> str:
    """A claim in words."""
    if one.lead is None:
        return f"{one.label} and {one.other} cannot be compared: {_why_not(one)}."
    if one.verdict in ("ahead", "behind"):
        verb = "wins over" if one.verdict == "ahead" else "loses to"
        return f"{one.label} {verb} {one.other} by {amount(one, metric)} ({certainty(one, metric)})."
    return f"{undecided(one, metric, one.label, one.other)}."


def undecided(one: Claim, metric: JudgedMetric, mine: str, theirs: str) -> str:
    """What may be said where a claim is open.

    Args:
        mine, theirs: what the modes are called.
    """
    side, far = _side(one, metric), amount(one, metric)
    apart = f"{mine} {side} {theirs}" + (f" by {far}" if side != "is level with" else "")
    first = apart[0].upper() + apart[1:] if mine[0].islower() and mine != one.label else apart
    if one.seeds == 1:
        first = f"{first} ({certainty(one, metric)})"
        if one.low is None:
            return f"{first}: how much chance plays is not known"
        if one.models == "open":
            return f"{first}: not distinguishable on these test data"
        return f"{first}, more than other test examples explain; what other seeds give is not known"
    text = f"{mine} and {theirs} are {_open(one)}: {apart} ({certainty(one, metric)})"
    text = text[0].upper() + text[1:] if mine != one.label else text
    if one.needed:
        return f"{text}; if that stays, {one.needed} seeds would tell"
    return text


def amount(one: Claim, metric: JudgedMetric) -> str:
    """How far two modes are apart, without a sign."""
    return f"{metric.form(abs(one.lead or 0.0))} {metric.unit}"


def certainty(one: Claim, metric: JudgedMetric) -> str:
    """The interval, and what it is made of."""
    seeds = f"{one.seeds} seeds" if one.seeds > 1 else "one seed"
    if one.low is None or one.high is None:
        return f"{seeds}, without an interval"
    low, high = (one.low, one.high) if one.verdict != "behind" else (-one.high, -one.low)
    ends = [f"{metric.form(abs(end))}{'' if one.verdict in ('ahead', 'behind') else _end(end)}" for end in (low, high)]
    drawn = "" if one.tested != "unknown" else ", test data not counted"
    return f"{_SURE}: {ends[0]} to {ends[1]}, {seeds}{drawn}"


def _end(end: float) -> str:
    return " behind" if end < 0 else " ahead"


def _side(one: Claim, metric: JudgedMetric) -> str:
    lead = one.lead or 0.0
    if metric.form(abs(lead)) == metric.form(0.0):
        return "is level with"
    return "is ahead of" if lead > 0 else "is behind"


def _open(one: Claim) -> str:
    return f"not distinguishable at {one.seeds} seeds" if one.seeds > 1 else "not distinguishable with one seed"


def _why_not(one: Claim) -> str:
    return "one of them has no finite metric with every seed" if one.seeds else "they have no seed in common"


def _own_evaluation(comparison: Comparison, metric: JudgedMetric) -> Iterator[str]:
    """Whose evaluation the metrics are from, if they are not ours."""
    if labels := [mode.label for mode in comparison.modes if mode.own_evaluation]:
        yield f"The metrics of {listed_names(labels)} are those that the app's own evaluation reports."
    if comparison.own_evaluation:
        yield _evaluated_by(comparison, metric)


def _evaluated_by(comparison: Comparison, metric: JudgedMetric) -> str:
    if metric.name not in {name for run in comparison.runs for name in run.by_server}:
        return OWN_EVALUATION
    text = f"{metric.name} is what the evaluate_fn of the ServerApp gives, on the same examples in every mode"
    apart = dict.fromkeys(name for run in comparison.runs for name in run.metrics if name.startswith(CLIENTS))
    own = f"; {listed_names(list(apart))} {'are' if len(apart) > 1 else 'is'} what its clients report" if apart else ""
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
        f"In {listed_names(names)} {why} {_rounds(absent)}: the curves have no point there."
        for absent, names in labels.items()
    ]


def _rounds(numbers: Sequence[int]) -> str:
    if len(numbers) > _ROUNDS_NAMED:
        return f"{len(numbers)} rounds between {numbers[0]} and {numbers[-1]}"
    return f"round{'s' if len(numbers) > 1 else ''} {listed_names([str(number) for number in numbers])}"


def _nothing_to_judge_by(comparison: Comparison) -> str:
    names = known_by_name(name for run in comparison.runs for name in run.metrics)
    if not names:
        return "Nothing was evaluated, so that the modes cannot be compared."
    return f"No metric says whether more of it is better; {listed(names)}. Name one: --metric {next(iter(names))}:max"


def _best(runs: Runs, metric: JudgedMetric, claims: Sequence[Claim]) -> str:
    """The best mean, which is a fact; and what it says of the modes, which may be nothing."""
    spreads = metric.finals(runs)
    if not spreads:
        return f"No mode has a finite {metric.name}."
    top = max(spreads.values(), key=metric.rank)
    best = [label for label, spread in spreads.items() if metric.form(spread.mean) == metric.form(top.mean)]
    over = f"over {top.n} seeds" if top.n > 1 else "with one seed"
    text = f"{listed_names([_title(label, runs) for label in best])} {'has' if len(best) == 1 else 'have'} the best "
    text += f"{metric.name}, {metric.format_spread(top)} {over}"
    near = [one.other for one in claims if one.about == "best" and one.verdict != "ahead" and one.other not in best]
    if top.n == 1 or not near:
        return f"{text}."
    return f"{text}; not distinguishable from {'it' if len(best) == 1 else 'them'}: {listed_names(near)}."


def _own_tests(
    runs: Runs, metric: JudgedMetric, roles: Roles | None, claims: Sequence[Claim]
) -> tuple[list[str], list[str]]:
    """Who leads on the sites' own test examples; if nothing is known of a federation there, what sites alone have.

    What belongs to the first sentences, and the rest.
    """
    if roles is not None and roles.alone:
        worth = next((one for one in claims if one.about == "alone"), None)
        sentences = site_sentences(runs[roles.together], runs[roles.alone], metric, worth)
        if any(sentences):
            return sentences
    test = "on its own site's test examples, an easier test the more the sites differ"
    return [], [
        f"{_title(label, runs)}: {test}, a site's own model has {metric.name} {metric.format_spread(spread)}."
        for label, of in runs.items()
        if in_report(of[0].kind).alone and (spread := Spread.of(map(metric.own, of))) is not None
    ]


def _cost_of_secrecy(comparison: Comparison, runs: Runs, one: Claim, metric: JudgedMetric) -> str:
    """Secure and plain aggregation from one start differ by rounding alone: chance has no part in the rest."""
    secure, plain = one.label, one.other
    if one.lead is None:
        text = f"{secure} and {plain} cannot be compared: {_why_not(one)}"
    elif one.verdict == "equal":
        text = f"{secure} and {plain} end equal" + (f" with each of {one.seeds} seeds" if one.seeds > 1 else "")
    elif metric.form(abs(one.lead)) == metric.form(one.sd or 0.0) == metric.form(0.0):
        text = f"{secure} and {plain} differ by less than the digits here show, {_why(comparison, secure)}"
    else:
        side = "above" if one.lead * metric.sign > 0 else "below"
        spread = Spread(mean=abs(one.lead), sd=one.sd, n=one.seeds)
        text = f"{secure} ends {mean_sd(spread, metric.form)} {metric.unit} {side} {plain}, {_why(comparison, secure)}"
    ups = [Spread.of(per_worker(run.bytes_up) for run in runs[label]) for label in (secure, plain)]
    downs = [Spread.of(per_worker(run.bytes_down) for run in runs[label]) for label in (secure, plain)]
    for verb, (mine, theirs) in (("; a worker sends", ups), (" and gets", downs)):
        if mine and theirs:
            text += f"{verb} {size(mine.mean)} instead of {size(theirs.mean)}"
    mine, theirs = (Spread.of(run.seconds for run in runs[label]) for label in (secure, plain))
    if mine and theirs:
        text += f"; training takes {duration(mine.mean)} instead of {duration(theirs.mean)}"
    return f"Secure aggregation: {text}."


def _why(comparison: Comparison, secure: str) -> str:
    """What may make last models differ whose modes differ in secrecy alone."""
    statuses = {check.status for check in comparison.sum_checks if check.mode == secure}
    if "differs" in statuses:
        return "and its sums are not the plain means"
    if statuses == {"holds"}:
        return "by rounding that training makes larger: the sums that were checked are the plain means"
    return "by rounding that training makes larger, or by a fault: no sum was checked"


def _privacy(runs: Runs) -> list[str]:
    return [
        f"{label}: {epsilon_line(of[0].privacy, max(run.epsilon_spent or 0.0 for run in of))}{trials_text(of)}."
        for label, of in runs.items()
        if of[0].privacy is not None
    ]


def trials_text(of: Sequence[RunResult]) -> str:
    """What the tuning trials of these runs spent in addition, to go behind the epsilon of training; or ""."""
    spent = [(run.trials_epsilon, run) for run in of if run.trials_epsilon is not None]
    if not spent:
        return ""
    most, run = max(spent, key=lambda pair: pair[0])
    assert run.privacy is not None  # noqa: S101 - of its trials there is no sum otherwise
    number, unknown = len(run.trials), sum(trial.epsilon_spent is None for trial in run.trials)
    text = (
        f"; the {number} trials that tuned it spent {most:.3f} more, so that with them it is "
        f"({(run.epsilon_spent or 0.0) + most:.3f}, {(number + 1) * run.privacy.delta:.3g}), epsilon and delta added up"
    )
    return f"{text}; what {unknown} of them spent is not known, and not in it" if unknown else text


def _left_out(runs: Runs) -> list[str]:
    """Sites whose data had no part in a model, by mode and seed."""
    failures = []
    for label, of in runs.items():
        absent = {
            run.seed: [name for name, count in run.sums.items() if not count] for run in of if any(run.sums.values())
        }
        for names in dict.fromkeys(map(tuple, filter(None, absent.values()))):
            seeds = [str(seed) for seed, missing in absent.items() if tuple(missing) == names]
            when = f" with seed{'s' if len(seeds) > 1 else ''} {listed_names(seeds)}" if len(of) > 1 else ""
            were = "were" if len(names) > 1 else "was"
            failures.append(
                f"In {label}{when} {listed_names(names)} {were} in no sum: the model has learnt nothing from there."
            )
    return failures


def _readable(runs: Runs) -> list[str]:
    plain = [label for label, of in runs.items() if of[0].aggregation == "plain"]
    return [f"In {listed_names(plain)} the server can read every update."] if plain else []


def _title(label: str, runs: Runs) -> str:
    point = runs[label][0].point
    return f"{label} (with {point_text(point)})" if point else label
