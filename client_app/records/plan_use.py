"""How much of its app's study plan a client has answered, as its ledger says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from client_app.records.ledger_entries import Entry
from client_app.records.offers import Offers
from fedcore.federation.admission.owner import AgreedSum
from fedcore.flower.app import FlowerApp
from fedcore.monitoring.formatting import count_of
from fedcore.system.terminal import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanUse:
    """One question of the plan.

    name, text: its name, and what it asks.
    allowed, runs: in how many runs it may be asked, and was.
    queries: sums of them that this client agreed to.
    most: of a run.
    """

    name: str
    text: str
    allowed: int
    runs: int
    queries: int
    most: int


def plan_use(state: Path, entries: Iterable[Entry]) -> tuple[PlanUse, ...]:
    """For each question of the installed app's plan; nothing if it has none. Raises ConfigurationError."""
    installed = Offers(state).installed()
    folder = state / "apps" / installed.app if installed is not None else None
    app = FlowerApp.load(folder) if folder is not None and folder.is_dir() else None
    if app is None or not app.plan:
        return ()
    from fedcore.flower.columns.plan import StudyPlan

    plan = StudyPlan.of(app)
    sums = [entry for entry in entries if isinstance(entry, AgreedSum)]
    uses = []
    for question in plan.questions if plan is not None else ():
        runs = [entry.run for entry in sums if entry.question == question.name]
        uses.append(
            PlanUse(
                name=question.name, text=question.text, allowed=question.runs, runs=len(set(runs)), queries=len(runs),
                most=question.queries,
            )
        )  # fmt: skip
    return tuple(uses)


def plan_lines(app: FlowerApp) -> list[str]:
    """What an owner who installs an app agrees to be asked; nothing if it has no plan. Raises ConfigurationError."""
    if not app.plan:
        return []
    from fedcore.flower.columns.plan import StudyPlan

    plan = StudyPlan.of(app) or StudyPlan(())
    return [f"study plan: no queries but these, {plan.queries} at most"] + [
        f"  {visible(f'{one.name}: {one.text}')}, in {count_of(one.runs, 'run')}" for one in plan.questions
    ]
