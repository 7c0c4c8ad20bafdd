"""The arithmetic of the codec benchmark, and small runs of its parts."""

import math
import shutil

import pytest

from benchmarks import large
from benchmarks.codec import COPY, Case, jobs, report
from benchmarks.codec_errors import CASES, Found, largest_errors
from benchmarks.codec_runs import STORIES, STRATEGIES, compare
from benchmarks.large import LargeRun, Stage, go_through, measure_large
from fedcore.errors import EnvironmentFailure

FOUND = Found(bits=16, clients=8, rounds=1, largest_update=1.0, error=0.5, bound=2.0)
LARGE = LargeRun(
    parameters=10**8,
    words=2 * 10**8,
    idle=50 << 20,
    threads=2,
    error_over_bound=0.25,
    stages=(Stage(name="encode", seconds=0.5, processor=0.9, peak=300 << 20),),
)


def times():
    """A copy of 1 ms, and everything else in 2 ms on two threads, in 4 ms on one."""
    cases = {
        Case(work=work, bits=bits, threads=n): 0.004 / n
        for work in ("encode", "decode")
        for bits in (16, 21, 32, 64)
        for n in (1, 2)
    }
    return {COPY: 0.001, Case(work="copy", bits=0, threads=2): 0.0005, **cases}


def test_figures_are_those_of_the_default_width_on_two_threads():
    slower = times()
    slower[Case(work="decode", bits=16, threads=2)] = 0.005
    made = report(slower, {"Gaussian": [FOUND]}, [LARGE])
    found = {figure.name: figure for figure in made.figures}
    assert found["encode_over_copy"].value == pytest.approx(0.5)
    assert found["decode_over_copy"].value == pytest.approx(0.2)
    assert not found["decode_over_copy"].holds
    assert found["error_over_bound"].value == pytest.approx(0.25)
    assert [table.title.split(",")[0] for table in made.tables] == ["Speed", "Error of the decoded mean", "d = 1e+08"]
    assert made.tables[2].rows[0] == ("encode", "0.50", "0.90", "9.00", "300", "1.57")


def test_traffic_counts_what_is_read_and_written():
    assert [Case(work="encode", bits=bits, threads=1).traffic for bits in (16, 32)] == [10, 12]
    assert Case(work="decode", bits=21, threads=1).traffic == pytest.approx(8 + 8 / 3)
    assert COPY.traffic == 8
    row = next(row for row in report(times(), {"": [FOUND]}, []).tables[0].rows if row[:3] == ("encode", "16", "1"))
    assert row[5:] == ("0.250", "0.312")


def test_an_error_without_a_bound_is_too_large():
    clipped = Found(bits=16, clients=8, rounds=1, largest_update=1.0, error=0.5, bound=math.inf)
    assert clipped.ratio == math.inf
    figures = report(times(), {"a": [FOUND, clipped]}, []).figures
    assert not figures[-1].holds


def test_every_job_runs():
    for job in jobs(1000).values():
        job()


@pytest.mark.parametrize("case", CASES)
def test_errors_stay_within_the_bound_and_are_not_nothing(case):
    found = largest_errors(case, parameters=1100)
    assert [(one.bits, one.clients) for one in found] == [(bits, n) for n in (8, 100) for bits in (16, 21, 32)]
    assert all(0 < one.ratio <= 1 for one in found)
    # Wider fields are finer ones.
    assert found[0].error > found[1].error > found[2].error


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("story", STORIES)
def test_secure_runs_stay_within_the_bound_of_plain_ones(story, bits, strategy):
    apart = compare(STORIES[story], strategy, bits=bits, rounds=7)
    assert 0.01 < apart.ratio <= 1
    # In 16 bits one more where the sites that are left in a round change the model by little, for all but FedAvg.
    little = "5 sites" in story and bits == 16 and strategy != "FedAvg"
    assert apart.repeats == (1 if "comes" in story or little else 0)


def test_a_large_run_in_small(tmp_path):
    run = go_through(20_000, tmp_path)
    assert 0 < run.error_over_bound <= 1
    assert run.words > 40_000
    assert len(run.stages) == 4
    assert all(stage.seconds > 0 and stage.peak > 0 for stage in run.stages)
    assert LargeRun.from_json(run.to_json()) == run


def test_a_large_run_has_a_process_of_its_own(tmp_path):
    assert measure_large(1000, folder=tmp_path).parameters == 1000
    assert list(tmp_path.iterdir()) == []


def test_a_large_run_without_room_fails_and_who_asked_for_it_learns(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["large.py", "--parameters", "1e14", "--folder", str(tmp_path)])
    assert large.main() == EnvironmentFailure.exit_code
    assert "has no room" in capsys.readouterr().err
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    with pytest.raises(EnvironmentFailure, match=r"1e\+03"):
        measure_large(1000, folder=tmp_path)
