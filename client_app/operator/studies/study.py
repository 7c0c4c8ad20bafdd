"""`fedcore study`: the questions of an app's study plan, one after the other, in one report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import typer

from client_app.operator.stats import ColumnsRequest
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.files import read_reports
from fedcore.comparison.report.story import headline
from fedcore.comparison.report.tables import part_tables
from fedcore.data.questions import Answer, answer_from_plain, answer_to_plain, question_to_plain
from fedcore.data.reports.report import ColumnsReport, picture_of, save_report
from fedcore.data.reports.study_report import StudySection, study_page
from fedcore.errors import ConfigurationError, PeerError
from fedcore.flower.app import FlowerApp
from fedcore.flower.columns.plan import PlannedQuestion, StudyPlan
from fedcore.system.files import write_file

_ANSWERS: Final = "answers.json"
_FORMS: Final = (".csv", ".tex", ".json", ".svg")


def ask_plan(
    app: FlowerApp, ask: Callable[[ColumnsRequest], Answer], out: Path, comparisons: Sequence[Path]
) -> dict[str, Any]:
    """Ask what `out` has no answer to yet, and write the report; returns its documents by question.

    Raises ConfigurationError for an app without a plan, and what `ask` does; what was answered by then stays in `out`.

    Args:
        ask: asks one question.
        out: a folder.
        comparisons: folders of `fedcore compare`, whose tables follow the answers.
    """
    plan = StudyPlan.of(app)
    if plan is None:
        raise ConfigurationError(
            "the app has no study plan: [tool.fedcore.statistics] in its pyproject.toml needs a line such as "
            'plan = "plan.toml", and that file its questions (docs/howto/statistics.md)',
            check="no-plan",
        )
    compared = read_reports([folder / "report.json" for folder in comparisons]) if comparisons else {}
    out.mkdir(parents=True, exist_ok=True)
    sections: list[StudySection] = []
    documents: dict[str, Any] = {}
    for question in plan.questions:
        if question.grows:
            continue
        report = question.report(_answer(app, question, ask, out / _ANSWERS))
        for form in _FORMS:
            save_report(report, out / f"{question.name}{form}")
        sections.append(_section(question, report))
        documents[question.name] = report.document()
        typer.echo(f"{question.name}: {out / question.name}.csv, .tex, .json, .svg", err=True)
    sections += [_compared(name, comparison) for name, comparison in compared.items()]
    write_file(out / "report.html", study_page(app.name, sections))
    typer.echo(f"report: {out / 'report.html'}", err=True)
    return documents


def _answer(app: FlowerApp, question: PlannedQuestion, ask: Callable[[ColumnsRequest], Answer], path: Path) -> Answer:
    """The answer that the file has to this very question, or a new one, which it then has."""
    answers = _read(path)
    plain = json.loads(json.dumps(question_to_plain(question.question)))
    known = answers.get(question.name)
    if isinstance(known, dict) and known.get("question") == plain:
        return answer_from_plain(question.question, known["answer"], error=PeerError)
    answer = ask(ColumnsRequest(app=app, question=question.question, report=question.report))
    answers[question.name] = {"question": plain, "answer": answer_to_plain(question.question, answer)}
    write_file(path, json.dumps(answers, indent=1) + "\n")
    return answer


def _read(path: Path) -> dict[str, Any]:
    try:
        answers = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}; name another folder with --out") from None
    if not isinstance(answers, dict):
        raise ConfigurationError(f"{path} holds no answers; name another folder with --out")
    return answers


def _section(question: PlannedQuestion, report: ColumnsReport) -> StudySection:
    picture = picture_of(report, ".svg").decode()
    return StudySection(
        title=question.name, text=question.text, lines=report.lines(), notes=report.notes(),
        picture=picture[picture.index("<svg") :],
    )  # fmt: skip


def _compared(name: str, comparison: Comparison) -> StudySection:
    head, rows = part_tables(comparison)["models"]
    return StudySection(
        title=f"models: {name}", text=f"{comparison.app}, {comparison.divided}", lines=[head, *rows],
        notes=headline(comparison),
    )  # fmt: skip
