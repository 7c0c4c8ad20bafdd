"""Fairness for sites: who leads on whose test examples, and how much a site counts.

A figure over sites is their mean, in which a site of 16 examples counts like one of 104, or weighted by test examples.
The test examples are those of all sites, or each site's own. Four figures, which need not agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fedcore.comparison.modes import in_report
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.summary import NONE, JudgedMetric, Spread, best_points, mean_sd
from fedcore.comparison.report.verdicts import Claim, SamplingError, judged, sampling_error
from fedcore.comparison.results import RunResult, SiteResult, number_of

MEANS: Final = {
    "everybody": "everybody's",
    "everybody_weighted": "everybody's, weighted",
    "own": "own",
    "own_weighted": "own, weighted",
}
"""Fields of `SiteMeans`, and the columns that show them."""
SITE_MEANS: Final = (
    "Everybody's: on the test examples of all sites; if each site has a model of its own, the mean of their figures. "
    "Own: each site's test examples, mean over the sites; an easier test the more the sites differ. Weighted: a site "
    "counts by its number of test examples, otherwise a small one like a large one. Gain, lose: sites whose own test "
    "examples this model fits better or worse than the site's own model, in the mean of the seeds."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteMeans:
    """A metric of one run's last models, over its sites.

    everybody, own: on the test examples of all sites, and on each site's own.
    weighted: each site's figure counts by its test examples.
    A figure is None if no site has one.
    """

    everybody: float | None
    everybody_weighted: float | None
    own: float | None
    own_weighted: float | None

    @classmethod
    def of(cls, run: RunResult, metric: JudgedMetric) -> SiteMeans:
        """A common model is one on the test examples of all sites, where nothing is left to weigh."""
        everybody = metric.at(run)
        alone = in_report(run.kind).alone
        return cls(
            everybody=everybody,
            everybody_weighted=_weighted(run.sites, lambda s: number_of(s.everywhere, metric.name))
            if alone
            else everybody,
            own=metric.own(run),
            own_weighted=_weighted(run.sites, metric.at),
        )


def _weighted(sites: Sequence[SiteResult], value: Callable[[SiteResult], float | None]) -> float | None:
    """The mean over the sites that have a value, each as often as it has test examples."""
    known = [(site.examples, of) for site in sites if (of := value(site)) is not None]
    examples = sum(count for count, _ in known)
    return sum(count * of for count, of in known) / examples if examples else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteGain:
    """One site with a common model against its own, on its own test examples.

    examples: test examples, of the first common seed.
    together, alone: mean over the common seeds of the metric.
    gains: by how much the common model is better, by seed.
    """

    site: str
    examples: int
    together: float
    alone: float
    gains: dict[int, float]

    @property
    def gain(self) -> float:
        """Mean over the seeds."""
        return sum(self.gains.values()) / len(self.gains)


def site_gains(together: Sequence[RunResult], alone: Sequence[RunResult], metric: JudgedMetric) -> list[SiteGain]:
    """Every site that has a figure with both modes and a common seed."""
    pairs: dict[str, dict[int, tuple[SiteResult, SiteResult]]] = {}
    theirs = {(run.seed, site.site): site for run in alone for site in run.sites}
    for run in together:
        for site in run.sites:
            other = theirs.get((run.seed, site.site))
            if other is not None and metric.at(site) is not None and metric.at(other) is not None:
                pairs.setdefault(site.site, {})[run.seed] = (site, other)
    return [_gain(name, by_seed, metric) for name, by_seed in pairs.items()]


def _gain(name: str, by_seed: dict[int, tuple[SiteResult, SiteResult]], metric: JudgedMetric) -> SiteGain:
    values = {seed: (_known(metric.at(mine)), _known(metric.at(theirs))) for seed, (mine, theirs) in by_seed.items()}
    return SiteGain(
        site=name,
        examples=next(iter(by_seed.values()))[0].examples,
        together=sum(mine for mine, _ in values.values()) / len(values),
        alone=sum(theirs for _, theirs in values.values()) / len(values),
        gains={seed: metric.sign * (mine - theirs) for seed, (mine, theirs) in values.items()},
    )


def _known(value: float | None) -> float:
    assert value is not None  # noqa: S101 - only sites with a figure are compared
    return value


# --- sentences -------------------------------------------------------------------------------------------------------


def site_sentences(
    together: Sequence[RunResult], alone: Sequence[RunResult], metric: JudgedMetric, claim: Claim | None = None
) -> tuple[list[str], list[str]]:
    """Who leads on whose test examples, how many sites gain, and the worst of them; nothing without both modes.

    What belongs next to the claim, since it is otherwise on the sites' own test examples, and the rest.

    Args:
        together, alone: the runs of a federation, and of sites that each train a model of their own.
        claim: what was said before of the two on everybody's test examples.
    """
    leads = {name: _Lead.of(name, together, alone, metric) for name in MEANS}
    if claim is not None and leads["everybody"] is not None:
        leads["everybody"] = replace(leads["everybody"], claim=claim)
    gains = site_gains(together, alone, metric)
    if not gains or any(lead is None or not math.isfinite(lead.by) for lead in leads.values()):
        return [], []
    known = {name: lead for name, lead in leads.items() if lead is not None}
    who_leads, who_gains = _who_leads(known, [gain.examples for gain in gains], metric), _who_gains(gains, metric)
    return ([who_leads], [who_gains]) if _disagree(known, metric) else ([], [who_leads, who_gains])


def _disagree(leads: Mapping[str, _Lead], metric: JudgedMetric) -> bool:
    """Whether not all means have the same side ahead."""
    return len({lead.side(metric) for lead in leads.values()}) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lead:
    """Means over the common seeds of a federation and of sites alone.

    by: what lies between them, larger if the federation is better.
    claim: whether that is more than chance.
    """

    together: float
    alone: float
    by: float
    claim: Claim

    @classmethod
    def of(
        cls, name: str, together: Sequence[RunResult], alone: Sequence[RunResult], metric: JudgedMetric
    ) -> _Lead | None:
        """By one of MEANS; None if no seed has it in both modes."""
        by_seed = {run.seed: run for run in alone}
        pairs = [(run, by_seed[run.seed]) for run in together if run.seed in by_seed]
        values = [[getattr(SiteMeans.of(run, metric), name) for run in pair] for pair in pairs]
        known = [(mine, other) for mine, other in values if mine is not None and other is not None]
        if not known:
            return None
        mine, other = (sum(each) / len(known) for each in zip(*known, strict=True))
        leads = [metric.sign * (one - another) for one, another in known]
        made = Claim(about="alone", label=together[0].mode, other=alone[0].mode, metric=metric.name)
        if all(map(math.isfinite, leads)):
            error = sampling_error(pairs, metric) if name.startswith("everybody") else _of_sites(name, pairs, metric)
            made = judged(made, leads, error, claims=len(MEANS))
        return cls(together=mine, alone=other, by=metric.sign * (mine - other), claim=made)

    def side(self, metric: JudgedMetric) -> int:
        """1 if the federation leads by anything that can be shown, -1 if sites alone do, else 0."""
        return _side(self.by, metric)

    def leader(self, metric: JudgedMetric) -> str:
        """Who leads; or who has the better mean, if that may be chance."""
        verb = "is ahead" if self.claim.verdict == "open" else "leads"
        names = ("federating and sites alone are level", f"federating {verb}", f"each site's own model {verb}")
        return names[self.side(metric)]

    def doubt(self, metric: JudgedMetric) -> str:
        """What several seeds leave open of it."""
        seeds = self.claim.seeds
        if not self.side(metric) or self.claim.verdict != "open" or seeds < 2:
            return ""
        return f", not distinguishable at {seeds} seeds"

    def values(self, metric: JudgedMetric) -> str:
        """The better one first."""
        pair = (self.together, self.alone) if self.by >= 0 else (self.alone, self.together)
        return " against ".join(map(metric.form, pair)) + _unit(metric)


def _of_sites(name: str, pairs: Sequence[tuple[RunResult, RunResult]], metric: JudgedMetric) -> SamplingError:
    """Of a mean over the sites' own test examples, as if the models were tested on different ones: a bound."""
    if not metric.percent:
        return SamplingError()
    variance = step = 0.0
    for run in pairs[0]:
        known = [(site.examples, value) for site in run.sites if (value := metric.at(site)) is not None]
        total = sum(count for count, _ in known)
        for count, value in known:
            weight = count / total if name == "own_weighted" else 1 / len(known)
            variance += weight**2 * max(0.0, value * (1 - value)) / count
            step = max(step, weight / count)
    return SamplingError(tested="unpaired", sd=math.sqrt(variance), step=step)


def _side(gain: float, metric: JudgedMetric) -> int:
    return 0 if metric.form(abs(gain)) == metric.form(0.0) else 1 if gain > 0 else -1


def _unit(metric: JudgedMetric) -> str:
    return " %" if metric.percent else ""


def _who_leads(leads: Mapping[str, _Lead], examples: Sequence[int], metric: JudgedMetric) -> str:
    everybody, own, weighted = (leads[name] for name in ("everybody", "own", "own_weighted"))
    leader = f"{weighted.leader(metric)}, " if weighted.side(metric) != own.side(metric) else ""
    sizes = (
        f"weighted by test examples, {min(examples):,} to {max(examples):,} a site, {leader}{weighted.values(metric)}"
        if len(set(examples)) > 1
        else f"each site has {examples[0]:,}"
    )
    own_values = f"{own.values(metric)}{own.doubt(metric)}"
    if not _disagree(leads, metric):
        return f"On each site's own test examples, too, {own.leader(metric)}, {own_values} ({sizes})."
    text = f"On everybody's test examples {everybody.leader(metric)}"
    if everybody.side(metric):
        text += f" by {metric.form(abs(everybody.by))} {metric.unit}"
    if everybody.side(metric) != leads["everybody_weighted"].side(metric):
        text += f" ({leads['everybody_weighted'].values(metric)} if each site's model is weighted by its test examples)"
    return f"{text}; on its own {own.leader(metric)}, {own_values} ({sizes})."


def _who_gains(gains: Sequence[SiteGain], metric: JudgedMetric) -> str:
    better, worse = (sum(_side(gain.gain, metric) == side for gain in gains) for side in (1, -1))
    seeds = list(dict.fromkeys(seed for gain in gains for seed in gain.gains))
    over = ""
    if len(seeds) > 1:
        each = {seed: sum(_side(gain.gains.get(seed, 0.0), metric) > 0 for gain in gains) for seed in seeds}
        single = ", ".join(f"{number} with seed {seed}" for seed, number in each.items())
        over = f" in the mean of {len(seeds)} seeds (gaining: {single})"
    text = f"By federating {better} of {len(gains)} sites gain{'s' if better == 1 else ''} on their own test examples"
    text += f" and {worse} lose{'s' if worse == 1 else ''}{over}"
    worst = min(gains, key=lambda gain: metric.sign * gain.together)
    other = min(gains, key=lambda gain: metric.sign * gain.alone)
    text += (
        f"; the worst site has {metric.form(worst.together)}{_unit(metric)} ({worst.site}, {worst.examples:,} examples)"
    )
    return f"{text}, alone the worst has {metric.form(other.alone)}{_unit(metric)} ({other.site}, {other.examples:,})."


# --- the table -------------------------------------------------------------------------------------------------------


def site_means_table(comparison: Comparison) -> tuple[tuple[str, ...], list[tuple[str, ...]]] | None:
    """The four means, the worst site, and how many gain and lose against sites alone, by mode; None without sites."""
    metric = JudgedMetric.of(comparison)
    runs = {label: of for label, of in best_points(comparison).items() if any(run.sites for run in of)}
    if metric is None or not any(metric.own(run) is not None for of in runs.values() for run in of):
        return None
    alone = next((of for of in runs.values() if in_report(of[0].kind).alone), None)
    head = [*MEANS.values(), "worst site"]
    rows = []
    for label, of in runs.items():
        means = [SiteMeans.of(run, metric) for run in of]
        cells = [mean_sd(Spread.of(getattr(one, name) for one in means), metric.form) for name in MEANS]
        cells.append(_worst(of, metric))
        if alone is not None:
            gains = site_gains(of, alone, metric)
            gain, lose = (sum(_side(one.gain, metric) == side for one in gains) for side in (1, -1))
            cells.append(NONE if of is alone else f"{gain} gain, {lose} lose")
        rows.append((label, *cells))
    return (f"mode: {metric.column}", *head, *(["against alone"] if alone is not None else [])), rows


def _worst(runs: Sequence[RunResult], metric: JudgedMetric) -> str:
    """The site with the worst mean over the seeds, with its name."""
    names = dict.fromkeys(site.site for run in runs for site in run.sites)
    spreads = {
        name: spread
        for name in names
        if (spread := Spread.of(metric.at(site) for run in runs for site in run.sites if site.site == name)) is not None
    }
    if not spreads:
        return NONE
    name = min(spreads, key=lambda one: metric.rank(spreads[one]))
    return f"{mean_sd(spreads[name], metric.form)} ({name})"
