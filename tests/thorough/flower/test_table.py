"""The table of docs/flower.md is what the apps of tests/flower_apps do today."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from flwr.clientapp import mod
from flwr.serverapp import strategy
from support.flower_rows import ROWS

ROOT = Path(__file__).parents[3]


def test_the_table_of_apps_is_what_they_do() -> None:
    spec = importlib.util.spec_from_file_location("make_flower_table", ROOT / "docs" / "make_flower_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.render() in (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")


def test_the_table_has_each_strategy_and_each_mod_of_flowers() -> None:
    titles = " ".join(row.title for row in ROWS)
    names = {*strategy.__all__, *mod.__all__} - {"Strategy", "Result"}
    assert {name for name in names if name not in titles} == set()
