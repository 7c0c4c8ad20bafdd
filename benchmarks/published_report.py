"""The saved runs of a table next to the published figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from benchmarks.common import Figure, Report, Table, mean_and_spread
from benchmarks.published_cells import TABLES, Cell, TableOf
from benchmarks.published_runs import Outcome, Run, Shelf, rounds_to

Kept = tuple[Run, Outcome]
_WITHIN = 0.5
_SHOWN = 10
"""Points of a curve that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one cell under one aggregation, at the learning rate that did best.

    value: rounds to the target, or accuracy in per cent, the mean over the seeds; None if a target was not reached.
    tried: all rates that were run.
    """

    cell: Cell
    kept: tuple[Kept, ...]
    value: float | None
    spread: float
    tried: tuple[float, ...]

    @property
    def ratio(self) -> float | None:
        """Ours over the published one: of the rounds, or of the errors (100 - accuracy)."""
        if not self.cell.published or self.value is None:
            return None
        published = fmean(self.cell.published)
        if self.cell.target is not None:
            return self.value / published
        return (100 - self.value) / (100 - published)

    @property
    def verdict(self) -> str:
        """Whether it is within 50 per cent of the published figure."""
        if not self.cell.published:
            return "-"
        if self.is_open:
            return "open, cut"
        if self.ratio is None:
            return "**no**, not reached"
        if self.ratio < 1 - _WITHIN:
            return "better"
        return "yes" if self.ratio <= 1 + _WITHIN else "**no**"

    @property
    def is_open(self) -> bool:
        """Whether a run was cut before it came within 50 per cent, which the rest of it may do: its best only grows."""
        cut = any(not outcome.answers(run) for run, outcome in self.kept)
        return cut and (self.ratio is None or self.ratio > 1 + _WITHIN)


def report(
    table: str, cells: Sequence[Cell], wanted: Sequence[Run], shelf: Shelf, failures: Mapping[str, str]
) -> Report:
    """Of all that is kept."""
    about = TABLES[table]
    kept = _kept(cells, wanted, shelf)
    if table == "widths":
        tables: tuple[Table, ...] = (_differences(kept), _curves(kept))
        figures = _difference_figures(kept)
    else:
        results = [result for cell in cells for result in _results(about, cell, kept)]
        tables = (_table(about, results), _curves([one for result in results for one in result.kept]))
        figures = [
            Figure(name=f"ratio_{_slug(result.cell.name)}", value=result.ratio, aim=1 + _WITHIN)
            for result in results
            if result.ratio is not None and not result.is_open and result.kept[0][0].aggregation != "plain"
        ]
    absent = [cell.name for cell in cells if not any(run.name == cell.name for run, _ in kept)]
    return Report(
        benchmark=f"published_{table}",
        figures=tuple(figures),
        tables=tables,
        notes=(*about.notes, *_cuts(kept, absent), *_failures(kept, failures)),
    )


def _kept(cells: Sequence[Cell], wanted: Sequence[Run], shelf: Shelf) -> list[Kept]:
    """What there is of the wanted runs, and of the same cells at their other learning rates."""
    others = [run for cell in cells for rate in cell.rates for run in cell.runs(rates=(rate,))]
    found = {}
    for run in (*wanted, *others):
        if run.key not in found and (outcome := shelf.outcome(run)) is not None:
            found[run.key] = (run, outcome)
    return list(found.values())


def _results(about: TableOf, cell: Cell, kept: Sequence[Kept]) -> list[Result]:
    """One for each aggregation of the cell."""
    of_cell = sorted(
        (one for one in kept if one[0].name == cell.name), key=lambda one: one[0].aggregation, reverse=True
    )
    results = []
    for _, group in groupby(of_cell, key=lambda one: one[0].aggregation):
        by_rate: dict[float, list[Kept]] = {}
        for run, outcome in group:
            by_rate.setdefault(float(run.config.get("lr", 0.0)), []).append((run, outcome))
        found = [_result(about, cell, ones, tuple(sorted(by_rate))) for ones in by_rate.values()]
        results.append(min(found, key=_order))
    return results


def _result(about: TableOf, cell: Cell, kept: Sequence[Kept], tried: tuple[float, ...]) -> Result:
    values = [_value(about, cell, outcome) for _, outcome in kept]
    reached = [value for value in values if value is not None]
    mean, spread = mean_and_spread(reached) if len(reached) == len(values) else (None, 0.0)
    return Result(cell=cell, kept=tuple(kept), value=mean, spread=spread, tried=tried)


def _value(about: TableOf, cell: Cell, outcome: Outcome) -> float | None:
    if cell.target is not None:
        return rounds_to(outcome.curve, cell.target)
    if about.last:
        return outcome.curve[-1]
    return outcome.late() if about.late else outcome.best


def _order(result: Result) -> tuple[bool, float]:
    """The best learning rate first: by rounds, or by accuracy, or by how near it came."""
    if result.value is None:
        return True, -fmean(outcome.best for _, outcome in result.kept)
    return False, result.value if result.cell.target is not None else -result.value


def _table(about: TableOf, results: Sequence[Result]) -> Table:
    header = (
        "cell", "aggregation", "published", "here", "ratio", "within 50 %", "best %", "lr (tried)", "seeds",
        "rounds run", "minutes", "date",
    )  # fmt: skip
    return Table(title=about.title, header=header, rows=tuple(map(_row, results)))


def _row(result: Result) -> tuple[str, ...]:
    cell, outcomes = result.cell, [outcome for _, outcome in result.kept]
    unit = "rounds" if cell.target is not None else "%"
    published = " and ".join(f"{value:g}" for value in cell.published) or "-"
    here = "-" if result.value is None else f"{result.value:.1f}" if unit == "rounds" else f"{result.value:.2f}"
    rates = {float(run.config["lr"]) for run, _ in result.kept if "lr" in run.config}
    tried = ", ".join(f"{rate:g}" for rate in result.tried)
    return (
        cell.name,
        result.kept[0][0].aggregation,
        (f"{published} ± {cell.spread:g}" if cell.spread else published) + (f" {unit}" if cell.published else ""),
        here + (f" ± {result.spread:.1f}" if len(outcomes) > 1 and result.value is not None else ""),
        "-" if result.ratio is None else f"{result.ratio:.2f}",
        result.verdict,
        f"{fmean(outcome.best for outcome in outcomes):.2f}",
        f"{', '.join(f'{rate:g}' for rate in rates)} ({tried})" if rates else "the app's",
        ", ".join(str(run.seed) for run, _ in result.kept),
        ", ".join(dict.fromkeys(str(outcome.rounds) for outcome in outcomes)),
        f"{sum(outcome.seconds for outcome in outcomes) / 60:.1f}",
        max(outcome.date for outcome in outcomes),
    )


# --- secure against plain -----------------------------------------------------------------------------------------


def _pairs(kept: Sequence[Kept]) -> list[tuple[Run, Outcome, Outcome]]:
    """Every secure run, its outcome, and that of the plain run with the same seed, over the rounds that both have."""
    plain = {(run.name, run.seed): outcome for run, outcome in kept if run.aggregation == "plain"}
    return [
        (run, outcome, plain[run.name, run.seed])
        for run, outcome in kept
        if run.aggregation != "plain" and (run.name, run.seed) in plain
    ]


def _apart(secure: Outcome, plain: Outcome) -> list[float]:
    """Secure minus plain after each round, percentage points."""
    return [ours - theirs for ours, theirs in zip(secure.curve, plain.curve, strict=False)]


def _differences(kept: Sequence[Kept]) -> Table:
    rows = tuple(
        (
            run.name,
            run.aggregation,
            str(len(apart) - 1),
            f"{plain.curve[len(apart) - 1]:.2f}",
            f"{apart[-1]:+.3f}",
            f"{max(map(abs, apart)):.3f}",
            str(run.seed),
        )
        for run, secure, plain in _pairs(kept)
        for apart in [_apart(secure, plain)]
    )
    header = ("cell", "aggregation", "rounds", "plain %", "secure - plain at the end", "largest on the curve", "seed")
    return Table(title=TABLES["widths"].title, header=header, rows=rows)


def _difference_figures(kept: Sequence[Kept]) -> list[Figure]:
    """How far each secure curve is from the plain one at its end."""
    return [
        Figure(
            name=f"secure_minus_plain_{_slug(run.name)}_{run.settings['field-bits']}",
            value=abs(_apart(secure, plain)[-1]),
            unit="points",
            aim=1.0,
        )
        for run, secure, plain in _pairs(kept)
    ]


# --- curves and what was cut --------------------------------------------------------------------------------------


def _curves(kept: Sequence[Kept]) -> Table:
    """Accuracy by round, each run at up to ten of its own; of several seeds the first."""
    rows = []
    shown: set[tuple[str, str, str]] = set()
    for run, outcome in kept:
        same = run.name, run.aggregation, str(run.config.get("lr"))
        if same in shown:
            continue
        shown.add(same)
        step = max(1, -(-outcome.rounds // _SHOWN))
        points = [f"{number}: {outcome.curve[number]:.1f}" for number in range(step, outcome.rounds + 1, step)]
        rate = f", lr {run.config['lr']:g}" if "lr" in run.config else ""
        rows.append((f"{run.name}, {run.aggregation}, seed {run.seed}{rate}", ", ".join(points)))
    return Table(title="Curves: accuracy in per cent by round", header=("run", "round: %"), rows=tuple(rows))


def _cuts(kept: Sequence[Kept], absent: Sequence[str]) -> list[str]:
    """What was cut, in words."""
    cuts = ["ratio: of rounds to the target, or of errors (100 - accuracy); within 50 % is 0.5 to 1.5"]
    short = [
        f"{run.name}, {run.aggregation} ({out.rounds} of {run.rounds} rounds)"
        for run, out in kept
        if not (out.failure or out.answers(run))
    ]
    if short:
        cuts.append(f"cut for time: {'; '.join(sorted(set(short)))}")
    if absent:
        cuts.append(f"not run: {'; '.join(absent)}")
    untried = sorted({run.name for run, _ in kept if "lr" in run.config})
    if untried:
        cuts.append(
            "learning rates: those in brackets were tried, one unless more are named; McMahan et al. tried 11 to 13"
        )
    return cuts


def _failures(kept: Sequence[Kept], failures: Mapping[str, str]) -> list[str]:
    """What was ended by an error, after some rounds or before its first."""
    later = [
        f"ended by an error after round {out.rounds}: {run.name}, {run.aggregation}: {out.failure}"
        for run, out in kept
        if out.failure
    ]
    keys = {run.key for run, _ in kept}
    return later + [f"failed: {reason}" for key, reason in failures.items() if key not in keys]


def _slug(name: str) -> str:
    words = "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
    return "_".join(words)
