"""What an app asks for of its node: declared in its pyproject.toml, checked at the site, filled in by its owner."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.raising import raises

from fedcore.errors import AppError, ConfigurationError
from fedcore.flower.node.config import MissingNodeValue, share_of_client
from fedcore.flower.node.keys import checked_node, node_keys, node_lines, with_defaults

TABLE: dict[str, Any] = {
    "csv": {"type": "file", "help": "this site's table", "unless": "partition-id"},
    "ward": {"type": "string", "help": "which ward", "default": "all"},
    "beds": {"type": "integer", "help": "how many beds"},
}
KEYS = node_keys(TABLE, Path("app"))


def test_a_site_that_sets_all_of_it_has_absolute_paths_and_what_else_it_wrote(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    node = checked_node(KEYS, {"csv": "rows.csv", "beds": 3, "of-another-app": True}, folder=tmp_path)
    assert node == {"csv": str(tmp_path / "rows.csv"), "beds": 3, "of-another-app": True}
    assert with_defaults(KEYS, node)["ward"] == "all"


def test_all_that_is_missing_is_named_with_its_help(tmp_path: Path) -> None:
    with raises(ConfigurationError, check="node-config", match=r"(?s)csv = .*beds = "):
        checked_node(KEYS, {}, folder=tmp_path)
    with raises(ConfigurationError, check="node-config", match="bets"):
        checked_node(KEYS, {"partition-id": 0, "bets": 3}, folder=tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"csv": "nosuch.csv", "beds": 3},
        {"csv": 3, "beds": 3},
        {"csv": ".", "beds": 3},  # a folder
        {"partition-id": 0, "beds": True},
        {"partition-id": 0, "beds": 3, "ward": 3},
    ],
)
def test_a_value_that_cannot_be_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with raises(ConfigurationError, check="node-config"):
        checked_node(KEYS, wrong, folder=tmp_path)


def test_a_simulation_has_the_defaults_and_its_shares() -> None:
    node = share_of_client(2, 3, KEYS)
    assert (node["ward"], node["partition-id"]) == ("all", 1)
    with pytest.raises(MissingNodeValue):
        node["beds"]


def test_a_kit_says_what_is_to_be_filled_in() -> None:
    values = {"ward": 'the "new" one', "partition-id": 0}
    lines = node_lines(KEYS, values)
    assert tomllib.loads(lines) == values
    assert [line for line in lines.splitlines() if line.startswith("# csv =")]
    filled = "\n".join(line.removeprefix("# ") if " = " in line else line for line in lines.splitlines())
    assert set(tomllib.loads(filled)) == {*TABLE, "partition-id"}


@pytest.mark.parametrize(
    "table",
    [
        {"csv": "file"},
        {"csv": {"type": "file"}},
        {"csv": {"type": "path", "help": "a table"}},
        {"csv": {"type": "file", "help": "a table", "default": "rows.csv"}},
        {"beds": {"type": "integer", "help": "beds", "default": "three"}},
        {"beds": {"type": "integer", "help": "beds", "required": True}},
        ["csv"],
    ],
)
def test_a_table_that_says_something_else_is_refused(table: Any) -> None:
    with raises(AppError, check="node-keys"):
        node_keys(table, Path("app"))
