"""The record of processing: what its owner filled in is in the document, and what is open is named."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
from support.raising import raises
from typer.testing import CliRunner

from client_app.owner.document import as_html, as_markdown
from client_app.owner.processing import ASSESSMENT, ITEMS, OPEN, PROCESSING_FILE, form_text
from client_app.owner.status import read_status
from client_app.records.offers import Offers
from fedcore.cli.main import app
from fedcore.errors import ConfigurationError, UnknownKey

KEYS = [item.key for item in (*ITEMS, *ASSESSMENT)]
APP = """
[project]
name = "tumours"
[tool.flwr.app.components]
serverapp = "a:app"
clientapp = "b:app"
[tool.fedcore.statistics]
schema = "schema.toml"
"""
SCHEMA = """
target = "ill"
task = "binary"
classes = ["no", "yes"]
[columns]
"age <b>" = { kind = "number", low = 0, high = 120 }
sex = { kind = "category", categories = ["f", "m"] }
"""


def test_the_form_has_every_item_and_nothing_filled_in() -> None:
    assert tomllib.loads(form_text()) == dict.fromkeys(KEYS, "")


def test_an_owner_fills_it_in_once(kit: Path) -> None:
    made = CliRunner().invoke(app, ["client", "status", "--kit", str(kit), "--form"])
    assert made.exit_code == 0, made.output
    assert as_markdown(read_status(kit, None)).count(OPEN) == len(KEYS)
    form = kit / PROCESSING_FILE
    filled = "".join(f'{key} = "the {key} <i>"\n' for key in KEYS)
    form.write_text(filled)
    page = as_html(read_status(kit, None))
    assert OPEN not in page
    assert all(f"the {key} &lt;i&gt;" in page for key in KEYS)
    again = CliRunner().invoke(app, ["client", "status", "--kit", str(kit), "--form"])
    assert isinstance(again.exception, ConfigurationError) or again.exit_code == 2
    assert form.read_text() == filled, "what an owner wrote stays"


@pytest.mark.parametrize(
    ("text", "error"),
    [("purpos = 'x'", UnknownKey), ("purpose = 3", ConfigurationError), ("purpose", ConfigurationError)],
)
def test_a_form_that_says_something_else_is_refused(text: str, error: type[Exception], kit: Path) -> None:
    (kit / PROCESSING_FILE).write_text(text)
    with raises(error):
        read_status(kit, None)


def test_the_columns_of_the_installed_app_are_listed(kit: Path) -> None:
    state, sha256 = kit / "state", "ab" * 32
    folder = state / "apps" / sha256
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(APP)
    (folder / "schema.toml").write_text(SCHEMA)
    Offers(state).note_installed(sha256, sha256)
    status = read_status(kit, None)
    assert status.table is not None
    assert [column.name for column in status.table.columns] == ["age <b>", "sex"]
    page = as_html(status)
    assert "age &lt;b&gt;" in page
    assert ">ill<" in page, "what is predicted is processed as well"
    assert all(name in page for name in (*status.members, *status.servers))
    shutil.rmtree(folder)
    assert read_status(kit, None).table is None
