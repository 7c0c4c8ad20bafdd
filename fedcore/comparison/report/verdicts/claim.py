"""Whether a difference between two modes is more than chance.

Two things are drawn by chance, the seeds and the test examples. The runs of two modes with one seed began from the same
model and the same split, so what counts is the difference within each pair; over the pairs it has an interval by
Student's t distribution (Student 1908). It is wide if there are few: with two seeds it reaches 9 standard deviations,
with five 1.24. How far the differences would be otherwise on other test examples is known from a bootstrap that draws
the same examples for both models (Efron 1979), or else is bounded as if they had been tested on different ones. Both
errors are independent, so that their intervals add as the sides of a right angle. Where a mode's models got much worse
from round to round, the last of them is luck, too, and the interval is wider by as much.

All intervals that a reader sees together hold with CONFIDENCE (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, stdev
from typing import Final, Literal, TypeAlias

from scipy.special import stdtrit

from fedcore.comparison.report.summary import JudgedMetric, Spread
from fedcore.comparison.report.verdicts.stability import dip
from fedcore.comparison.results import RunResult

CONFIDENCE: Final = 0.95
_SAME: Final = 1e-9
"""Of a value; less is rounding."""
MOST_SEEDS: Final = 100
"""The most that a claim says would be enough."""

Verdict: TypeAlias = Literal["ahead", "behind", "open", "equal", "differs"]
About: TypeAlias = Literal["alone", "pooled", "gap", "secrecy", "asynchrony", "privacy", "best"]
Tested: TypeAlias = Literal["paired", "unpaired", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What the data say of one mode against another, by the metric that models are judged by.

    about: "alone", "pooled": a federation against sites alone, and against pooled data; "gap": pooled data against
        sites alone; "secrecy", "asynchrony", "privacy": two modes that differ in nothing else; "best": the mode with
        the best mean against another.
    label, other: the two modes.
    verdict: "ahead" or "behind" if the whole interval is on that side of zero, else "open"; of one seed always "open".
        "equal" if the difference is zero with every seed and two modes should be equal, as secure and plain
        aggregation should; "differs" if they should and are not.
    lead: by how much the label's models are better, mean over the common seeds; null if it is not finite.
    sd: sample standard deviation of that over the seeds; null for one.
    seeds: how many both modes have finished.
    low, high: ends of the interval of the lead, which has the seeds and the test data in it, of one seed the test data
        alone; null if there is none.
    tested: whether the test data's part of it is of the same examples for both, a bound, or missing.
    models: the verdict on the very models that were made, by the test data alone.
    needed: how many seeds would tell, if the lead and its spread stay as they are; null if that is not known, more
        than 100, or if the test data are too few for any number.
    """

    about: About
    label: str
    other: str
    metric: str
    verdict: Verdict = "open"
    lead: float | None = None
    sd: float | None = None
    seeds: int = 0
    low: float | None = None
    high: float | None = None
    tested: Tested = "unknown"
    models: Verdict = "open"
    needed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingError:
    """What other test examples would have made of a mean lead.

    sd: standard error, 0 if it is unknown.
    step: the smallest difference that so many examples can show, 0 if any can be.
    """

    tested: Tested = "unknown"
    sd: float = 0.0
    step: float = 0.0

    def reach(self, claims: float) -> float:
        """Half the width of the interval; with the continuity correction of McNemar's test (Edwards 1948)."""
        return 0.0 if self.tested == "unknown" else _normal(claims) * self.sd + self.step


def claim(
    about: About,
    runs: Sequence[RunResult],
    others: Sequence[RunResult],
    metric: JudgedMetric,
    *,
    claims: float = 1,
) -> Claim:
    """What the runs of two modes say, seed by seed.

    Args:
        claims: how many a reader sees together.
    """
    by_seed = {run.seed: run for run in others}
    pairs = [(run, by_seed[run.seed]) for run in runs if run.seed in by_seed]
    leads = [lead for pair in pairs if (lead := _lead(metric.at, pair, metric.sign)) is not None]
    made = Claim(about=about, label=runs[0].mode, other=others[0].mode, metric=metric.name, seeds=len(leads))
    if not leads or len(leads) < len(pairs) or not all(map(math.isfinite, leads)):
        return made
    dips = sum(dip([pair[side] for pair in pairs], metric) for side in (0, 1))
    return judged(made, leads, sampling_error(pairs, metric), claims=claims, dips=dips)


def judged(made: Claim, leads: Sequence[float], error: SamplingError, *, claims: float = 1, dips: float = 0.0) -> Claim:
    """The claim with what these leads say, one for each seed and all finite.

    Args:
        dips: by how much models of both modes got worse on their way, by which the interval is wider on both sides:
            of a few seeds none may have ended in such a round.
    """
    spread = Spread.of(leads)
    assert spread is not None  # noqa: S101 - there is a lead
    mean, n = spread.mean, spread.n
    known = replace(made, lead=mean, sd=spread.sd, seeds=n, tested=error.tested)
    by_test = error.reach(claims)
    if error.tested != "unknown":
        known = replace(known, models=_side(mean - by_test, mean + by_test))
    # Seeds that change nothing are one seed.
    if spread.sd is None or (spread.sd <= _SAME * abs(mean) and not error.step):
        return known if error.tested == "unknown" else replace(known, low=mean - by_test, high=mean + by_test)
    sd = max(spread.sd, error.step)

    def reach_of(number: int) -> float:
        return _reach(sd, number, error, claims) + dips

    reach = reach_of(n)
    enough = (number for number in range(n + 1, MOST_SEEDS + 1) if reach_of(number) < abs(mean))
    verdict = _side(mean - reach, mean + reach)
    needed = next(enough, None) if verdict == "open" else None
    return replace(known, low=mean - reach, high=mean + reach, verdict=verdict, needed=needed)


def sampling_error(pairs: Sequence[tuple[RunResult, RunResult]], metric: JudgedMetric) -> SamplingError:
    """Of the mean lead of these pairs of runs, one for each seed."""
    examples = min((sum(site.examples for site in run.sites) for pair in pairs for run in pair), default=0)
    step = 1 / examples if metric.percent and examples else 0.0
    draws = [[run.bootstrap.get(metric.name, ()) for run in pair] for pair in pairs]
    number = min((len(each) for pair in draws for each in pair), default=0)
    if number > 1:
        leads = [sum(mine[b] - theirs[b] for mine, theirs in draws) / len(draws) for b in range(number)]
        if all(map(math.isfinite, leads)):
            return SamplingError(tested="paired", sd=stdev(leads), step=step)
    if not step:
        return SamplingError()
    shares = [Spread.of(metric.at(pair[side]) for pair in pairs) for side in (0, 1)]
    variance = sum(one.mean * (1 - one.mean) for one in shares if one is not None)
    return SamplingError(tested="unpaired", sd=math.sqrt(max(0.0, variance) / examples), step=step)


def _lead(value: Callable[[RunResult], float | None], pair: tuple[RunResult, RunResult], sign: int) -> float | None:
    mine, theirs = map(value, pair)
    return None if mine is None or theirs is None else sign * (mine - theirs)


def _side(low: float, high: float) -> Verdict:
    return "ahead" if low > 0 else "behind" if high < 0 else "open"


def _reach(sd: float, n: int, error: SamplingError, claims: float) -> float:
    """Half the width of an interval in which n leads and the test data both err.

    Student's t with the degrees of freedom of the sum (Satterthwaite 1946) is narrower, but too narrow of two seeds.
    """
    student = float(stdtrit(n - 1, 1 - (1 - CONFIDENCE) / claims / 2)) / math.sqrt(n)
    return math.hypot(student * sd, error.reach(claims))


def _normal(claims: float) -> float:
    return NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / claims / 2)
