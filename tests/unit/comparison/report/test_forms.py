"""What a report has for a paper: tables and methods for LaTeX, CSV with all digits, figures as SVG."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.comparisons import everything, made_up, made_up_run
from support.raising import raises

from fedcore.comparison.report import Comparison, export, parse_export
from fedcore.comparison.report.files import Report, drawings_of
from fedcore.comparison.report.forms.latex import tables_tex
from fedcore.comparison.report.forms.long_form import curves_csv, finals_csv
from fedcore.comparison.report.forms.methods import methods_md, methods_tex, sentences
from fedcore.comparison.report.tables import part_tables
from fedcore.comparison.results import CurvePoint
from fedcore.data.reports.latex import escaped
from fedcore.errors import ConfigurationError

HOSTILE = r"app_1 & 50 % #1 $x^2$ {\input{/etc/passwd}} ~ <b> ]"


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def as_cell(value: Any) -> str:
    return "" if value is None else str(value)


def odd() -> Comparison:
    """Numbers that JSON lacks, a metric with several numbers, a comma and quotes in a label's value."""
    point = CurvePoint(round=1, samples=None, seconds=0.1 + 0.2, metrics={"auc": (0.5, 1 / 3), "loss": math.nan})
    run = made_up_run("local", curve=(point,), point={"strategy": 'a,"b"\n'})
    return made_up("local", runs=(run, replace(run, seed=2, point={"strategy": "c"})), seeds=2)


@pytest.mark.parametrize("made", [everything, odd])
def test_csv_read_back_is_what_the_json_has(made: Any) -> None:
    comparison = made()
    document = json.loads(Report.of(comparison).to_json())
    points = [(run, point) for run in document["runs"] for point in run["curve"]]
    rows = rows_of(curves_csv(comparison))
    assert len(rows) == len(points)
    for row, (run, point) in zip(rows, points, strict=True):
        assert (row["mode"], row["kind"], row["seed"]) == (run["mode"], run["kind"], str(run["seed"]))
        assert all(row[f"set:{key}"] == as_cell(run["point"].get(key)) for key in comparison.sweeps)
        amounts = {key: point[key] for key in point if key != "metrics"}
        assert {key: row[key] for key in amounts} == {key: as_cell(value) for key, value in amounts.items()}
        for name, value in point["metrics"].items():
            several = {f"{name}[{i}]": one for i, one in enumerate(value)} if isinstance(value, list) else {name: value}
            assert all(row[f"metric:{key}"] == as_cell(one) for key, one in several.items())
    finals = rows_of(finals_csv(comparison))
    assert [row["model_sha256"] for row in finals] == [run["model_sha256"] for run in document["runs"]]
    assert [row["seconds"] for row in finals] == [as_cell(run["seconds"]) for run in document["runs"]]
    assert [row["status"] for row in finals] == [run["status"] for run in document["runs"]]


def test_a_table_has_every_cell_of_the_page() -> None:
    comparison = everything()
    text = tables_tex(comparison)
    for head, rows in part_tables(comparison).values():
        lines = [" & ".join(map(escaped, row)) + r" \\" for row in (head, *rows)]
        assert all(line in text for line in lines)
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(rf"\{rule}") == 2
    assert text.count("{") == text.count("}")
    assert text.count(r"\resizebox{\ifdim\width>\linewidth") == 2


@given(st.text())
def test_no_text_does_anything_in_latex(text: str) -> None:
    plain = re.sub(r"\\(?:text[a-z]+\{\}|dots\{\}|[{}$&#%_])|\$\\(?:pm|times|mu|varepsilon|delta)\$", "", escaped(text))
    assert not set("\\{}$&#%_^\n\r") & set(plain)


def test_what_others_named_is_escaped_everywhere() -> None:
    comparison = made_up(app=HOSTILE, partition=HOSTILE, run_config={"lr_max": HOSTILE})
    for text in (tables_tex(comparison), methods_tex(comparison)):
        assert r"\input" not in text.replace(r"\textbackslash{}input", "")
        assert escaped(HOSTILE) in text
    assert "<b>" not in methods_md(comparison).replace(r"\<b\>", "")


def test_the_methods_say_what_a_reader_needs_to_repeat_it() -> None:
    comparison = made_up("centralized,federated,federated-dp", seeds=3)
    text = " ".join(sentences(comparison))
    for part in ("0.1.0", "2.13.0", "1, 2, 3", "lr=0.05", "dirichlet:0.3", "100, 200, 300, 400", "accuracy", "wan"):
        assert part in text, part
    assert "(6.4, 1e-05)" in text
    assert "simulated in memory" not in text
    swept = " ".join(sentences(everything()))
    assert "outer-lr was swept over 0.7, 0.3" in swept
    assert "1 of 39 runs failed" in swept


def test_the_files_are_those_that_were_named(tmp_path: Path) -> None:
    comparison = made_up(seeds=2)
    (tmp_path / "drawn.svg").touch()
    paths = export(comparison, parse_export("svg, csv,latex,csv"), tmp_path)
    names = {"tables.tex", "methods.tex", "methods.md", "curves.csv", "finals.csv"}
    names |= {f"{drawing.name}.svg" for drawing in drawings_of(comparison)}
    assert {path.name for path in paths} == names
    assert {path.name for path in tmp_path.iterdir()} == names | {"drawn.svg"}, "a user's own file stays"
    figure = (tmp_path / "accuracy-rounds.svg").read_text()
    assert "var(--" not in figure, "its colours need no page"
    assert "fill-opacity" in figure, "the band over the seeds"
    with raises(ConfigurationError, check="no-such-form"):
        parse_export("latex,word")
