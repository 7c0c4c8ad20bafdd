"""What a person asks `fedcore stats` for, and reads."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedcore.cli.main import app
from fedcore.data.reports.statistics_report import StatisticsReport, bins_from, bounds_from, quantiles_from
from fedcore.data.statistics import StatisticsQuery, pooled
from fedcore.errors import ConfigurationError, UnknownKey
from tests.support.raising import raises

APP = Path(__file__).parents[2] / "apps" / "columns"


def test_options_come_before_the_apps_own_bounds() -> None:
    table = {"bounds": {"age": [0, 100]}}
    assert bounds_from([], table) == {"age": (0.0, 100.0)}
    assert bounds_from(["age=0:120 dose=-1:1e3"], table) == {"age": (0.0, 120.0), "dose": (-1.0, 1000.0)}
    assert bounds_from(["-5:5"], table) == (-5.0, 5.0)
    assert bounds_from([], {"bounds": [0, 1]}) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("texts", "table", "names"),
    [
        ([], {}, r"--bounds 'age=0:120 dose=0:5'.*tool.fedcore.statistics.bounds"),
        (["age"], {}, r"--bounds.*low:high.*'age'"),
        (["age=old:young"], {}, "age=old:young"),
        (["0:1 age=0:1"], {}, "--bounds 0:1"),
        (["age=0:1", "age=0:2"], {}, r"--bounds.*\bage\b"),
        ([], {"bounds": {"age": [1]}}, r"\bage\b"),
    ],
)
def test_bounds_that_say_nothing_are_refused(texts: list[str], table: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigurationError, match=names):
        bounds_from(texts, table)


def test_other_settings_of_the_app() -> None:
    assert (bins_from(None, {"bins": 8}), bins_from(5, {"bins": 8}), bins_from(None, {})) == (8, 5, 64)
    assert quantiles_from("0.1, 0.9", {"quantiles": [0.5]}) == (0.1, 0.9)
    assert quantiles_from("", {"quantiles": [0.5]}) == (0.5,)
    with raises(ConfigurationError, numbers=(0, 1, 50)):
        quantiles_from("50", {})
    with raises(UnknownKey, key="bound", match="'bounds'"):
        bounds_from(["0:1"], {"bound": [0, 1]})


def test_what_is_not_there_is_empty_or_null() -> None:
    found = pooled(
        StatisticsQuery.of({"age": (0.0, 10.0), "none": (0.0, 1.0)}, bins=5), [{"age": [1.0, 9.0], "none": []}]
    )
    report = StatisticsReport(found, (0.5,))
    assert report.csv().splitlines() == [
        "column,count,missing,outside,mean,std,min,q0.5,max",
        "age,2.0,0.0,0.0,5.0,4.0,0.0,2.0,10.0",
        "none,0.0,0.0,0.0,,,,,",
    ]
    document = report.document()
    assert document["columns"]["none"]["mean"] is None
    assert document["columns"]["age"]["histogram"]["counts"] == [1, 0, 0, 0, 1]
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_noise_leaves_out_what_it_drowns() -> None:
    question = StatisticsQuery.of({"age": (0.0, 10.0)}, bins=5, epsilon=1.0, delta=1e-5)
    column = question.column("age", 0, question.answer({"age": [1.0]}, os.urandom)["age"])
    assert not math.isnan(column.count)


class TestCommand:
    def run(self, *words: str) -> Result:
        return CliRunner().invoke(app, ["stats", str(APP), *words])

    def test_in_memory_it_tells_the_columns_of_all_clients(self) -> None:
        done = self.run("--clients", "3", "--json")
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert found["clients"] == 3
        assert list(found["columns"]) == ["age", "dose"]
        assert found["columns"]["dose"]["count"] == 123

    @pytest.mark.parametrize(
        ("words", "names"),
        [
            (("--clients", "3", "--server", "https://x"), "--server"),
            (("--dp-delta", "1e-6"), "--dp-epsilon"),
            (("--clients", "3", "--bounds", "0:1", "--dp-epsilon", "1"), "bounds"),
            (("--clients", "3", "--out", "table.txt"), ".json"),
            (("--clients", "3", "--bounds", "age=5:5"), "age"),
            (("--clients", "3", "--bins", "0"), "2048"),
            (("--clients", "3", "--set", "dp-epsilon=1 dp-rounds=1 clip-norm=1"), "query"),
        ],
    )
    def test_what_cannot_be_true_is_refused(self, words: tuple[str, ...], names: str) -> None:
        done = self.run(*words)
        assert done.exit_code == 2
        assert names in done.stderr.replace("\n", " ")
