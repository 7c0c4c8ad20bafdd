"""What is written about the code agrees with the code."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from support.doc_blocks import MARKERS, blocks
from typer.testing import CliRunner

from fedcore.cli.main import app
from fedcore.codec.encoding import ENCODING_TAG, QUERY_ENCODING_TAG
from fedcore.codec.privacy.parameters import PRIVATE_ENCODING_TAG
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.results import RunResult
from fedcore.federation import Policy
from fedcore.federation.admission.bounds import BOUNDS_TAG
from fedcore.federation.admission.question import QUESTION_TAG
from fedcore.federation.kits.policy_text import policy_text
from fedcore.federation.requests import ADMISSION_TAG, REQUEST_TAG
from fedcore.federation.roster import ROSTER_CHECKS, ROSTER_TAG
from fedcore.federation.transcript.chain import HEAD_TAG
from fedcore.federation.transcript.records import RECORD_TAG
from fedcore.run.groups import PLACE_TAG
from fedcore.run.settings import JobSettings
from fedcore.secagg.checks import Check, Fault
from fedcore.secagg.crypto.domain import Usage
from fedcore.simulation.checkpoint.state_folder import FORMAT as STATE_FORMAT
from fedcore.wire.chunks import UPDATE_TAG
from fedcore.wire.forms import WIRE
from fedcore.wire.problems import ProblemKind
from fedcore.wire.tasks import TASK_TAG
from server_app.storage.tables import SCHEMA_VERSION, Base

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_state_machines_page_is_the_table() -> None:
    spec = importlib.util.spec_from_file_location("make_state_machines", ROOT / "docs" / "make_state_machines.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert read("docs/state-machines.md") == module.render()


def test_every_setting_is_explained() -> None:
    """The page of settings is made from the docstring."""
    explained = inspect.getdoc(JobSettings) or ""
    keys = {field.name for field in dataclasses.fields(JobSettings)}
    assert keys <= set(re.findall(r"\w+", " ".join(re.findall(r"^([a-z_, ]+):", explained, re.MULTILINE))))


def test_the_changelog_has_the_versions_of_all_forms() -> None:
    newest_first = re.findall(r"^\| (.+) \| `(.+)` \|$", read("CHANGELOG.md"), re.MULTILINE)
    table = dict(reversed(newest_first))
    assert table == {
        "messages between server and client": str(WIRE),
        "digest of an update": UPDATE_TAG,
        "task": TASK_TAG,
        "secure aggregation": Usage.CONTEXT.value,
        "encoding": ENCODING_TAG,
        "encoding of a query, before the names of its numbers are known": QUERY_ENCODING_TAG,
        "encoding with noise": PRIVATE_ENCODING_TAG,
        "record of the transcript": RECORD_TAG,
        "head of the transcript": HEAD_TAG,
        "answer to a draw of groups": PLACE_TAG,
        "roster": ROSTER_TAG,
        "request to join": REQUEST_TAG,
        "admission": ADMISSION_TAG,
        "bounds in the ledger": BOUNDS_TAG,
        "questions in the ledger": QUESTION_TAG,
        "the server's database": str(SCHEMA_VERSION),
        "report of a comparison": default_of(Comparison, "schema"),
        "one run in such a report": default_of(RunResult, "schema"),
        "state of a simulation": str(STATE_FORMAT),
    }


def default_of(kind: type, name: str) -> str:
    return next(field.default for field in dataclasses.fields(kind) if field.name == name)


def test_every_column_of_the_database_is_explained() -> None:
    """The tables in the data model are made from docstrings."""
    for mapper in Base.registry.mappers:
        explained = re.findall(r"^([a-z0-9_, ]+):", inspect.getdoc(mapper.class_) or "", re.MULTILINE)
        assert {column.name for column in mapper.local_table.columns} == set(re.findall(r"\w+", " ".join(explained)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for named in re.findall(r"`((?:fedcore|server_app|client_app|tests|benchmarks|docs|deploy)/[\w./-]+\.\w+)`", text):
        assert (ROOT / named).exists(), f"{page.name} names {named}"


def test_every_command_that_a_page_names_exists() -> None:
    commands = {"fedcore"} | {" ".join(names) for names in _commands(("fedcore",), typer.main.get_command(app))}
    groups = {name.rpartition(" ")[0] for name in commands} - {"", "fedcore"}
    for page in PAGES:
        for named in re.findall(r"`(fedcore(?: [a-z]+)+)", page.read_text(encoding="utf-8")):
            words = named.split()
            known = " ".join(words[:3]) if " ".join(words[:2]) in groups else " ".join(words[:2])
            assert known in commands, f"{page.name} names {named}"


def _commands(names: tuple[str, ...], command: click.Command) -> Iterator[tuple[str, ...]]:
    yield names
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _commands((*names, name), found)


def test_the_threat_model_names_only_checks_that_exist() -> None:
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", read("docs/threat-model.md")))
    folders = ("client_app", "fedcore/federation/admission", "fedcore/federation/transcript")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")] + [
        ROOT / "fedcore" / "run" / "groups.py"
    ]
    client = "".join(path.read_text(encoding="utf-8") for path in sources)
    settings = {*JobSettings().to_mapping(), *re.findall(r"^([a-z-]+)", policy_text(Policy.default(4)), re.MULTILINE)}
    known = settings | set(Check) | set(Fault) | set(ProblemKind) | ROSTER_CHECKS
    for name in named - known:
        assert f'"{name}"' in client, f"no check is called {name}"


def test_the_threat_model_names_only_tests_that_exist() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", read("docs/threat-model.md")))
    assert len(named) > 20
    assert {name for name in named if f"def {name}(" not in tests} == set()


def test_the_table_of_graph_sizes_is_what_the_code_computes() -> None:
    spec = importlib.util.spec_from_file_location("make_graph_table", ROOT / "docs" / "make_graph_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.render() in read("docs/protocol.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        file = page.parent / target if target else page
        assert anchor in slugs(file), f"{page.name} links to {target}#{anchor}"


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as repositories and the site make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_a_table_of_contents() -> None:
    docs = ROOT / "docs"
    listed = {docs / "index.md"}
    for page in docs.rglob("*.md"):
        for block in blocks(page):
            entries = [line for line in block.text.splitlines() if line and not line.startswith(":")]
            for entry in entries if block.language == "{toctree}" else ():
                found = [*page.parent.glob(f"{entry}.md")]
                assert found, f"{block.name} lists {entry}"
                listed |= {path.resolve() for path in found}
    assert {path.relative_to(docs) for path in {*docs.rglob("*.md")} - listed} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A command that no test runs says why, and none hides in a block of another language."""
    for block in blocks(page):
        assert block.language, f"{block.name}: a fence of no language"
        assert set(block.marks) <= set(MARKERS)
        if block.language == "text":
            assert not re.search(r"^\$ |^(fedcore|make|pip|docker) [a-z]+ ", block.text, re.MULTILINE), block.name
        if reason := block.marks.get("not run"):
            assert re.match(r"(needs|takes|a test of|run by|a fragment)", reason), f"{block.name}: {reason}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_drawing_is_cut_off(page: Path) -> None:
    """The site shows so many columns at 1280 pixels."""
    drawings = [block for block in blocks(page) if block.language == "text" and re.search("--|──", block.text)]
    for block in drawings:
        assert max(map(len, block.text.splitlines())) <= 96, block.name


@pytest.mark.parametrize("command", ["provision", "server", "client", "run", "transcript", "simulate", "compare"])
def test_every_command_shows_an_example(command: str) -> None:
    done = CliRunner().invoke(app, [command, "--help"])
    assert done.exit_code == 0
    shown = " ".join(done.output.split())
    assert re.search(rf"Example: +fedcore {command} [a-z-]", shown)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run", ["[tool.flwr.app.config]", "[tool.fedcore]"]),
        ("simulate", ["[tool.flwr.app.config]", "[tool.fedcore]"]),
        ("compare", ["ps-ssp[s=3]", "[tool.flwr.app.config]", "[tool.fedcore]"]),
        ("client", ["[default: KIT/state]", "[default: the app's]"]),
    ],
)
def test_help_keeps_what_stands_in_brackets(command: str, words: list[str]) -> None:
    """Rich takes it for markup unless it is escaped."""
    shown = " ".join(CliRunner().invoke(app, [command, "--help"]).output.replace("│", " ").split())
    assert all(word in shown for word in words)
