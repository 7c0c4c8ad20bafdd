"""What the benchmarks print, and when an aim counts as met."""

import argparse
import json

import pytest

from benchmarks.common import Figure, Report, Table, mean_and_spread, run
from fedcore.errors import DataError

FIGURE = Figure(name="secure_over_plain", value=1.25, aim=1.5)
REPORT = Report(
    benchmark="example",
    figures=(FIGURE,),
    tables=(Table(title="Rounds", header=("model", "seconds"), rows=(("1e6", "0.5"),)),),
    notes=("two cores",),
)


@pytest.mark.parametrize(
    ("value", "aim", "at_least", "holds"),
    [
        (1.5, 1.5, False, True),
        (1.51, 1.5, False, False),
        (1.5, 1.5, True, True),
        (1.49, 1.5, True, False),
    ],
)
def test_an_aim_is_a_bound_from_above_unless_it_says_otherwise(value, aim, at_least, holds):
    assert Figure(name="x", value=value, aim=aim, at_least=at_least).holds is holds


def test_a_figure_that_is_no_number_holds_nothing():
    assert not Figure(name="x", value=float("nan"), aim=1.0).holds


def test_json_is_one_object_of_the_agreed_form(capsys):
    status = run(lambda _: REPORT, argparse.Namespace(json=True, save=None))
    printed = json.loads(capsys.readouterr().out)
    assert status == 0
    assert printed["benchmark"] == "example"
    assert printed["machine"]["cores"] >= 1
    assert printed["figures"] == [
        {"name": "secure_over_plain", "value": 1.25, "unit": "ratio", "aim": 1.5, "holds": True}
    ]
    assert printed["tables"][0]["rows"] == [{"model": "1e6", "seconds": "0.5"}]


def test_the_saved_report_names_command_and_machine_but_no_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/benchmarks/example.py", "--data-dir", "/data/here", "--quick"])
    path = tmp_path / "new" / "example.md"
    run(lambda _: REPORT, argparse.Namespace(json=False, save=path))
    text = path.read_text()
    assert text == capsys.readouterr().out.removesuffix("\n")
    assert "command: `python benchmarks/example.py --data-dir DATA --quick`" in text
    assert "| secure_over_plain | 1.250 | ratio | at most 1.5 | yes |" in text
    assert "/somewhere" not in text
    assert "/data" not in text


def test_an_error_is_one_line_and_an_exit_status(capsys):
    def fail(_):
        raise DataError("the file is missing")

    assert run(fail, argparse.Namespace(json=True, save=None)) == DataError.exit_code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "error: the file is missing\n"


def test_ctrl_c_is_one_line_and_status_130(capsys):
    def stop(_):
        raise KeyboardInterrupt

    assert run(stop, argparse.Namespace(json=False, save=None)) == 130
    assert capsys.readouterr().err == "stopped; what it had started has ended\n"


def test_the_spread_is_that_of_a_sample():
    assert mean_and_spread([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
    assert mean_and_spread([4.0]) == (4.0, 0.0)
