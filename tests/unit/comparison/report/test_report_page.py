"""report.html, report.md, the PNGs and the terminal: whole, self-contained, escaped."""

import itertools
import json
import math
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from rich.console import Console
from support.comparisons import everything, made_up, made_up_run

from fedcore.comparison.judging import JudgedBy
from fedcore.comparison.report import terminal_table, write_report
from fedcore.comparison.report.curves import (
    MeanCurve,
    curve_drawings,
    curve_table,
    metric_limits,
    sweep_drawings,
)
from fedcore.comparison.report.details import age_shares
from fedcore.comparison.report.drawing import looks, spread_out
from fedcore.comparison.report.files import drawings_of, page
from fedcore.comparison.report.story import headline
from fedcore.comparison.report.tables import definition_rows, main_table, part_tables
from fedcore.comparison.results import RunResult

HOSTILE = '<script>alert(1)</script>"&'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of everything that a report can hold, with names that would break a careless page."""
    out = tmp_path_factory.mktemp("report")
    whole = everything()
    runs = (made_up_run("centralized", seed=9, status="failed", reason=HOSTILE), *whole.runs)
    write_report(made_up(",".join(mode.label for mode in whole.modes), seeds=3, app=HOSTILE, runs=runs), out)
    return out


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    return (folder / "report.html").read_text()


class Elements(HTMLParser):
    """Tags, ids and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


@pytest.fixture(scope="module")
def elements(html: str) -> Elements:
    parser = Elements()
    parser.feed(html)
    return parser


def test_the_page_refers_to_nothing_outside_itself(html: str, elements: Elements) -> None:
    assert re.findall(r"https?:|//[a-z]|\bsrc=|@import|url\((?!#)", html) == []
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(elements.tags)
    ids = [value for name, value in elements.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    links = [value for name, value in elements.attributes if name in ("href", "xlink:href")]
    inside = [f"#{target}" for target in re.findall(r"url\(#([^)]*)\)", html)]
    assert {link[1:] for link in links + inside} <= set(ids), "every reference is to an element of the page"


def test_what_comes_from_a_run_is_escaped(html: str, folder: Path) -> None:
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3, "title, heading and the reason of the failure"
    assert {path.name for path in folder.iterdir()} == {"report.json", "report.html", "report.md", "figures"}


def test_the_markdown_says_how_it_was_made(folder: Path) -> None:
    text = (folder / "report.md").read_text(encoding="utf-8")
    made = text[text.index("## How it was made") :]
    document = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert f"- {document['created']}, {document['machine']['system']}" in made
    assert "- seeds " + ", ".join(map(str, document["seeds"])) in made
    assert all(f"{key} = {value}" in made for key, value in document["run_config"].items())
    assert f"- network {document['network']['name']}; a step computes for" in made


def test_every_section_with_data_is_there(html: str, folder: Path) -> None:
    titles = re.findall(r"<h2[^>]*>([^<]*)</h2>", html)
    assert titles == [
        "Results",
        "Runs without a result",
        "Training curves",
        "Sweeps",
        "Site by site",
        "Cost of privacy",
        "Staleness",
        "What was lost",
        "Fairness",
        "Settings and machine",
    ]
    names = [f"accuracy-{axis}" for axis in ("samples", "bytes", "seconds", "simulated-seconds", "rounds")]
    names += ["sweep-outer-lr", "split", "sites", "staleness", "privacy"]
    assert {path.stem for path in (folder / "figures").iterdir()} == set(names)
    assert all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for path in (folder / "figures").iterdir())
    for name in names:
        assert f'aria-labelledby="{name}-title"' in html
        assert f'id="{name}-title"' in html


def test_sections_without_data_are_left_out() -> None:
    run = made_up_run("local", sites=0, simulated_seconds=None, curve=())
    comparison = made_up("local", runs=(run,), split=(), network=None, cost=None)
    assert drawings_of(comparison) == []
    titles = re.findall(r"<h2[^>]*>([^<]*)</h2>", page(comparison, []))
    assert titles == ["Results", "Fairness", "Settings and machine"]


class Order(HTMLParser):
    """What stands on a page, in its order: paragraphs of the headline, tables by their heads, figures, sections."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[str] = []
        self.heads: list[list[str]] = []
        self.text: dict[str, list[str]] = {"p": [], "li": []}
        self.tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tag = tag
        if tag in ("table", "figure", "h2", "h3", "p"):
            self.blocks.append(tag)
        if tag == "table":
            self.heads.append([])
        if tag in self.text:
            self.text[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self.tag = ""

    def handle_data(self, data: str) -> None:
        if self.tag == "th" and data.strip():
            self.heads[-1].append(data)
        if self.tag in self.text:
            self.text[self.tag][-1] += data


def test_the_first_screen_has_three_sentences_a_table_and_a_figure(html: str, folder: Path) -> None:
    order = Order()
    order.feed(html.replace("\u00a0", " "))
    sentences = json.loads((folder / "report.json").read_text())["headline"]
    assert len(sentences) > 3
    assert order.text["p"][2:5] == sentences[:3]
    assert [text for text in order.text["li"] if text in sentences] == sentences[3:]
    start = [block for block in order.blocks[: order.blocks.index("figure") + 1] if block not in ("p", "h3")]
    assert start == ["h2", "table", "figure"], "one table, then the figure, then all other tables"
    few = ["mode", "set", "accuracy %", "seen by", "up", "simulated", "runs"]
    assert order.heads[0][: len(few)] == few


def test_the_markdown_begins_with_three_sentences_a_table_and_a_figure(folder: Path) -> None:
    sentences = json.loads((folder / "report.json").read_text())["headline"]
    blocks = (folder / "report.md").read_text().split("\n\n")
    assert blocks[1:4] == sentences[:3]
    assert blocks[4].startswith("| mode | set | accuracy % | seen by |")
    assert blocks[6].startswith("![")
    assert blocks[7:][: len(sentences) - 3] == sentences[3:]


def test_words_begin_at_the_left_and_numbers_end_at_the_right(folder: Path) -> None:
    tables = re.findall(r"^\| (.*) \|\n\|([-:|]*)\|\n\| (.*) \|$", (folder / "report.md").read_text(), re.MULTILINE)
    rules: dict[str, str] = {}
    for head, rule, _ in tables:
        for title, one in zip(head.split(" | "), rule.split("|"), strict=True):
            rules.setdefault(title, one)
    for title in ("mode", "seen by", "set", "reason", "status", "what was compared", "the server sees"):
        assert rules[title] == "---", title
    for title in ("accuracy %", "loss", "up", "seconds", "runs", "seed", "after round"):
        assert rules[title] == "---:", title


def test_a_share_has_no_axis_beyond_one_hundred_percent() -> None:
    ends = {1: 0.99, 2: 0.98, 3: 0.1}
    runs = []
    for seed, end in ends.items():
        run = made_up_run("ps-async", seed=seed)
        points = tuple(replace(point, metrics={"accuracy": end if point.round else 0.1}) for point in run.curve)
        runs.append(replace(run, curve=points))
    for drawing in curve_drawings(made_up("ps-async", runs=tuple(runs), seeds=3)):
        figure = Figure(figsize=(4, 3))
        drawing.draw(figure)
        low, high = figure.axes[0].get_ylim()
        assert -0.1 < low < 0.1
        assert 1 < high < 1.1


def test_the_costs_have_a_table_of_their_own() -> None:
    parts = part_tables(everything())
    models, costs = parts["models"][0], parts["costs"][0]
    assert models[:2] == costs[:2] == ("mode", "set")
    assert {*models, *costs} == {*main_table(everything())[0]} - {"all bytes", "start", "processor"}, (
        "which nobody measured here"
    )
    assert not {"simulated", "up", "down"} & {*models}


def test_a_difference_is_red_on_the_page_and_on_the_terminal(html: str) -> None:
    assert '<p class="bad"><b>Not everything was equal' in html
    assert '<span class="bad">differs</span> Examples trained on' in html
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system="standard")
    console.print(terminal_table(everything()))
    assert re.search(r"\x1b\[31mExamples trained on: differs", console.file.getvalue())


def test_equal_runs_are_said_to_be_equal() -> None:
    text = page(made_up(), [])
    assert 'class="bad"' not in text
    assert '<p class="good">' in text


@pytest.mark.parametrize(
    ("modes", "width"),
    [("centralized,allreduce,ps-sync,federated,federated-plain", 80), ("ps-ssp[s=3,shards=2],federated[lr=0.1]", 80)],
)
def test_the_table_fits_the_terminal(modes: str, width: int) -> None:
    console = Console(file=StringIO(), width=width)
    console.print(terminal_table(made_up(modes, seeds=5)))
    lines = console.file.getvalue().splitlines()
    rows = [line for line in lines if "±" in line and "MB" in line]
    assert max(len(line) for line in lines) <= width
    assert all(line.rstrip()[-1] == "5" or " s" in line for line in rows)
    assert not any("…" in line for line in lines), "no cell is cut"


def test_a_long_reason_ends_as_its_log_does() -> None:
    log = "client-1 ended\n" + "  File frozen, line 198\n" * 40 + "ImportError: no module named torch"
    console = Console(file=StringIO(), width=120)
    console.print(terminal_table(made_up("federated", runs=(made_up_run("federated", status="failed", reason=log),))))
    text = " ".join(console.file.getvalue().split())
    assert "client-1 ended" in text
    assert "ImportError: no module named torch" in text
    assert text.count("line 198") < 10


def test_the_table_of_failed_runs_fits_too() -> None:
    failed = made_up_run("federated-async", status="failed", reason="too few clients")
    runs = (failed, *(made_up_run("ps-async", seed=seed) for seed in (1, 2)))
    console = Console(file=StringIO(), width=80)
    made = made_up("federated-async,ps-async", runs=runs, seeds=2)
    console.print(terminal_table(made))
    lines = console.file.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 80
    assert any(line.split()[:1] == ["federated-async"] for line in lines), "on one line"
    assert any(line.rstrip().endswith(" failed") for line in lines), "whole"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_is_cut_at_any_width(width: int) -> None:
    comparison = everything()
    console = Console(file=StringIO(), width=width)
    console.print(terminal_table(comparison))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(" ".join(line.removeprefix("•") for line in lines).split())
    assert all(sentence in words for sentence in headline(comparison)), "every sentence is whole"
    head, rows = main_table(comparison)
    shown = {"accuracy %", "seen by", "up", "down", "simulated", "runs"}
    cells = {cell for row in rows for title, cell in zip(head, row, strict=True) if title in shown}
    assert all(cell in words for cell in cells), "and every cell"


def test_a_file_is_as_wide_as_a_small_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with (tmp_path / "report.txt").open("w") as file:
        Console(file=file).print(terminal_table(made_up(seeds=3)))
    text = (tmp_path / "report.txt").read_text()
    assert all(sentence in " ".join(text.split()) for sentence in headline(made_up(seeds=3)))
    assert max(map(len, text.splitlines())) <= 80


def test_a_mode_has_one_look_and_no_two_share_it() -> None:
    labels = [f"mode-{index}" for index in range(12)]
    assert len({(look.color, str(look.dash)) for look in looks(labels).values()}) == 12
    assert len({look.marker for look in looks(labels).values()}) == 12


def test_a_line_is_the_mean_over_the_seeds() -> None:
    runs = made_up("centralized", seeds=2).runs
    samples = next(one for one in curve_drawings(made_up("centralized", seeds=2)) if one.name == "accuracy-samples")
    line = samples.draw.keywords["lines"]["centralized"]
    ends = [run.metrics["accuracy"] for run in runs]
    assert line.x[-1] == runs[0].samples
    assert line.y[-1] == pytest.approx(sum(ends) / 2)
    assert line.high[-1] - line.low[-1] == pytest.approx(2**0.5 * abs(ends[0] - ends[1]))


def test_one_seed_draws_no_band_and_speaks_of_none() -> None:
    for drawing in drawings_of(made_up("federated,federated-plain,local")):
        assert "seeds" not in drawing.caption, drawing.name
        assert "standard deviation" not in drawing.caption, drawing.name
    assert "fill_between" not in page(made_up(), []), "a band would be a PolyCollection"
    (curves, *_) = curve_drawings(made_up())
    assert "PolyCollection" not in curves.svg()
    assert "PolyCollection" in curve_drawings(made_up(seeds=2))[0].svg()


def line(*values: float) -> MeanCurve:
    return MeanCurve(x=tuple(range(len(values))), y=values, low=values, high=values)


@pytest.mark.parametrize(
    ("sign", "curves", "limits"),
    [
        (1, [(0.1, 0.9, 0.95), (0.1, 0.7, 0.8)], (0.1, 0.95)),
        (-1, [(2.0, 0.5, 0.1), (2.0, 1.0, 0.6)], (0.1, 2.0)),
        (-1, [(2.0, 0.5, 0.0), (2.0, 100.0, 1e9)], (0.0, 2.5)),
        (1, [(0.5, 0.5)], (0.5, 0.5)),
        (1, [(0.5, 0.7), (0.5, 0.2)], (0.2, 0.7)),
        (1, [(0.5, 0.4), (0.5, 0.1)], (0.1, 0.5)),
    ],
)
def test_axes_show_whole_curves_but_for_what_diverges(
    sign: int, curves: list[tuple[float, ...]], limits: tuple[float, float]
) -> None:
    assert metric_limits([line(*values) for values in curves], sign) == pytest.approx(limits)


def diverging(mode: str, values: list[float]) -> RunResult:
    run = made_up_run(mode, rounds=len(values) - 1)
    pairs = zip(run.curve, values, strict=True)
    return replace(run, curve=tuple(replace(point, metrics={"loss": value}) for point, value in pairs))


def test_a_figure_says_which_points_it_leaves_out() -> None:
    runs = (
        diverging("centralized", [2.0, 1.0, 0.5]),
        diverging("federated", [2.0, 9.0, 90.0]),
        diverging("local", [2.0, math.nan, math.nan]),
        diverging("allreduce", [math.nan, math.inf, math.nan]),
    )
    labels = ",".join(run.mode for run in runs)
    made = made_up(labels, runs=runs, judged_by=JudgedBy(name="loss", better="min"))
    for drawing in curve_drawings(made):
        text = unescape(drawing.svg())
        notes = re.findall(r">(Left out: [^<]*)<", text)
        assert len(notes) == 3, drawing.name
        assert "2 points of federated above 2.4" in notes[0]
        assert "2 points of local" in notes[1]
        assert "allreduce" in notes[2]
        assert "↑ 90.0000" in text, "its label does not pretend to be at its height"
    (whole, *_) = curve_drawings(made_up())
    assert "Left out" not in whole.svg()


def test_a_sweep_and_its_sites_say_which_values_they_leave_out() -> None:
    """lr=10 diverged, and of `local` every value did."""

    def swept(mode: str, rate: float, last: float) -> RunResult:
        run = made_up_run(mode, point={"lr": rate})
        sites = tuple(replace(site, metrics={"accuracy": last}) for site in run.sites)
        end = replace(run.curve[-1], metrics={"accuracy": last, "loss": 1.0})
        return replace(run, curve=(*run.curve[:-1], end), sites=sites)

    runs = (swept("federated", 0.1, 0.9), swept("federated", 1.0, math.inf), swept("federated", 10.0, math.nan))
    runs += (swept("local", 0.1, math.nan), swept("local", 1.0, math.nan))
    made = made_up("federated,local", runs=runs)
    (drawing,) = sweep_drawings(made)
    notes = re.findall(r">(Left out: [^<]*)<", unescape(drawing.svg()))
    assert len(notes) == 2
    assert "federated" in notes[0]
    assert "lr=1.0 and 10.0" in notes[0]
    assert "local" in notes[1]
    (sites,) = [one for one in drawings_of(made) if one.name == "sites"]
    (note,) = re.findall(r">(Left out: [^<]*)<", unescape(sites.svg()))
    assert "local at 4 sites" in note
    (plain,) = sweep_drawings(made_up("federated", runs=(runs[0], swept("federated", 1.0, 0.8))))
    assert "Left out" not in plain.svg()


def test_the_cost_of_privacy_says_whose_metric_it_leaves_out() -> None:
    secure, plain = made_up_run("federated"), made_up_run("federated-plain")
    for last in (math.nan, -math.inf):
        end = replace(plain.curve[-1], metrics={"accuracy": last})
        made = made_up("federated,federated-plain", runs=(secure, replace(plain, curve=(*plain.curve[:-1], end))))
        (drawing,) = [one for one in drawings_of(made) if one.name == "privacy"]
        (note,) = re.findall(r">(Left out: [^<]*)<", unescape(drawing.svg()))
        assert "federated-plain" in note
    (whole,) = [one for one in drawings_of(made_up("federated,federated-plain")) if one.name == "privacy"]
    assert "Left out" not in whole.svg()


def test_what_an_app_says_of_its_metrics_stands_there_for_its_clients_too() -> None:
    run = made_up_run("federated", by_server=("auc",))
    end = replace(run.curve[-1], metrics={"auc": 0.9, "clients/auc": 0.8, "recall": 0.7})
    runs = (replace(run, curve=(*run.curve[:-1], end)),)
    made = made_up("federated", runs=runs, own_evaluation=True, definitions={"auc": "area under the ROC curve"})
    rows = dict(definition_rows(made))
    assert rows["auc"] == "area under the ROC curve"
    assert rows["clients/auc"].startswith("area under the ROC curve")
    assert "area" not in rows["recall"]


def test_the_first_model_has_a_place_on_every_axis() -> None:
    (of_bytes,) = [one for one in curve_drawings(made_up("federated,allreduce")) if one.name == "accuracy-bytes"]
    assert re.findall(r"federated: 10\.00 % after 0 B<", of_bytes.svg())


def test_every_point_of_a_curve_says_its_value(html: str) -> None:
    told = re.findall(r'<g class="hover"><rect [^>]*/><text [^>]*>([^<]*)</text></g>', html)
    assert any(re.fullmatch(r"federated: \d+\.\d\d ± \d\.\d\d % after 8,622 examples", text) for text in told)
    assert any(re.fullmatch(r"client-2: \d+ of label 3", text) for text in told)
    assert any(re.fullmatch(r"0: \d+\.\d % of the updates", text) for text in told)
    curves = curve_drawings(made_up("federated", runs=(made_up_run("federated", rounds=1000),)))
    assert all(20 < one.svg().count('class="hover"') <= 62 for one in curves)


def test_the_curves_are_there_as_a_table_too() -> None:
    head, rows = curve_table(
        made_up("federated,local", runs=(made_up_run("federated"), made_up_run("local", rounds=4)))
    )
    assert head == ("round: accuracy %", "federated", "local")
    assert [row[0] for row in rows] == [str(number) for number in range(7)]
    assert [row[2] for row in rows[5:]] == ["–", "–"]


def test_settings_that_nobody_changed_are_folded(html: str) -> None:
    shown, folded = page(made_up(changed=("lr",)), []).rsplit("<details>", 1)
    assert "run config: lr" in shown
    assert "run config: batch-size" not in shown
    assert "2 settings that are as the app or fedcore has them" in folded
    assert "run config: batch-size" in folded
    assert "setting: min-clients" in folded


def test_old_updates_are_together_in_the_last_bar() -> None:
    assert age_shares([{0: 1, 40: 1}, {1: 1, 99: 1}]) == {0: 0.25, 1: 0.25, 40: 0.5}


@given(st.lists(st.floats(-1, 2), max_size=15), st.floats(0.01, 0.2))
def test_labels_never_overlap(places: list[float], height: float) -> None:
    moved = spread_out(sorted(places), [height] * len(places))
    assert all(later - earlier >= height - 1e-9 for earlier, later in itertools.pairwise(moved))
    if height * len(places) <= 1:
        assert all(height / 2 - 1e-9 <= place <= 1 - height / 2 + 1e-9 for place in moved)
