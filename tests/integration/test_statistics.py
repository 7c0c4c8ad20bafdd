"""`fedcore stats` on a federation of real processes: three sites, a server, and an operator who sees sums."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind
from support.commands import forked
from support.deployment import Deployment

import fedcore

APP = Path(__file__).parents[1] / "apps" / "columns"
sys.path.insert(0, str(APP))
from columns_app.table import table  # noqa: E402

ROWS, SITES = 40, 3


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Three clients with the app whose columns are known."""
    with Deployment.open(tmp_path_factory.mktemp("sites"), clients=SITES, allow_plain=True) as deployment:
        deployment.app = APP
        deployment.start()
        yield deployment


def together(cells: list[int], least: int = 5) -> list[float]:
    """Cells that hold fewer with the next ones, each with the mean."""
    ends = [0]
    for end in range(1, len(cells) + 1):
        if sum(cells[ends[-1] : end]) >= least:
            ends.append(end)
    ends[-1] = len(cells)
    return [sum(cells[a:b]) / (b - a) for a, b in itertools.pairwise(ends) for _ in range(b - a)]


def ask(sites: Deployment, *options: str | Path) -> Any:
    return forked("stats", APP, "--operator", sites.federation.operator, *options)


def test_the_operator_reads_what_numpy_says_of_all_rows(sites: Deployment, tmp_path: Path) -> None:
    done = ask(sites, "--json", "--out", tmp_path / "table.csv")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["clients"], found["asked"], found["dp_epsilon"]) == (SITES, SITES, None)
    for name, (low, high) in {"age": (0, 100), "dose": (-1, 1)}.items():
        everything = np.concatenate([table(site, ROWS)[name] for site in range(SITES)])
        inside = np.clip(everything[~np.isnan(everything)], low, high)
        column = found["columns"][name]
        assert column["count"] == len(inside)
        assert column["mean"] == pytest.approx(inside.mean(), abs=1e-6)
        assert column["std"] == pytest.approx(inside.std(), abs=1e-6)
        assert column["histogram"]["counts"] == pytest.approx(
            together(np.histogram(inside, bins=16, range=(low, high))[0].tolist())
        )
    assert (tmp_path / "table.csv").read_text().startswith("column,count,missing,")


def test_both_modes_and_memory_tell_the_same(sites: Deployment) -> None:
    wanted = ("--bounds", "ward=0:4 age=20:90", "--bins", "8", "--json")
    secure, plain = ask(sites, *wanted), ask(sites, *wanted, "--set", "aggregation=plain")
    memory = forked("stats", APP, "--clients", str(SITES), *wanted)
    for done in (secure, plain, memory):
        assert done.returncode == 0, done.stderr
    first, *others = (json.loads(done.stdout)["columns"] for done in (secure, plain, memory))
    for other in others:
        for name in ("ward", "age"):
            assert other[name]["histogram"] == first[name]["histogram"]
            numbers = [{key: one[name][key] for key in ("count", "missing", "mean", "std")} for one in (first, other)]
            assert numbers[0] == pytest.approx(numbers[1], abs=1e-6)


def test_a_table_with_noise_says_so(sites: Deployment) -> None:
    done = ask(sites, "--dp-epsilon", "1")
    assert done.returncode == 0, done.stderr
    assert "with noise for every record of a client: epsilon 1 at delta 1e-05" in done.stdout


def test_a_column_that_nobody_has_ends_with_the_clients_own_words(sites: Deployment) -> None:
    done = ask(sites, "--bounds", "height=0:2")
    assert done.returncode == 5
    assert ": wrong-records" in done.stderr
    assert "there is no column 'height' to count; there are age, dose, ward" in sites.log("client-1")


def test_the_next_run_is_the_apps_own(sites: Deployment) -> None:
    done = forked("run", APP, "--operator", sites.federation.operator, "--out", sites.folder / "none", "--json")
    assert done.returncode == 0, done.stderr
    assert '"query"' in done.stdout


def test_a_table_one_of_sites_with_their_own_files(tmp_path: Path) -> None:
    """All rows of all sites, those of their test parts too, by the schema of an app that a CSV file made."""
    draw = np.random.default_rng(5)
    sites = [
        pd.DataFrame(
            {
                "age": draw.integers(20, 90, 60),
                "dose": draw.random(60).round(3),
                "sex": draw.choice(["f", "m"], 60),
                "ill": draw.integers(0, 2, 60),
            }
        )
        for _ in range(SITES)
    ]
    for number, frame in enumerate(sites, start=1):
        frame.to_csv(tmp_path / f"{number}.csv", index=False)
    made = forked("new", tmp_path / "clinic", "--csv", tmp_path / "1.csv", "--target", "ill")
    assert made.returncode == 0, made.stderr
    with Deployment.open(tmp_path, clients=SITES) as federation:
        federation.app = tmp_path / "clinic"
        federation.start_server()
        for number in range(1, SITES + 1):
            federation.start_client(f"client-{number}", "--node-config", f'csv="{tmp_path / str(number)}.csv"')
        for number in range(1, SITES + 1):
            federation.wait_for_log(f"client-{number}", "connected")
        done = forked(
            "stats", federation.app, "--operator", federation.federation.operator, "--by", "sex", "--json",
            "--out", tmp_path / "table.tex",
        )  # fmt: skip
        remote = fedcore.Federation.connect(federation.federation.operator)
        crosstab = remote.stats(federation.app, crosstab=("ill", "sex"))
        correlations = remote.stats(federation.app, correlations=True)
    assert done.returncode == 0, done.stderr
    found, rows = json.loads(done.stdout), pd.concat(sites)
    groups = [rows, *(group for _, group in rows.groupby("sex"))]
    assert found["rows"] == [len(group) for group in groups]
    assert found["columns"]["age"]["mean"] == pytest.approx([group["age"].mean() for group in groups], abs=1e-5)
    assert found["columns"]["age"]["std"] == pytest.approx([group["age"].std() for group in groups], abs=1e-5)
    expected = ttest_ind(*(group["age"] for group in groups[1:]), equal_var=False).pvalue
    assert found["columns"]["age"]["p"] == pytest.approx(expected, rel=1e-3)
    counts = pd.crosstab(rows["ill"], rows["sex"]).to_numpy()
    assert np.array(found["columns"]["ill"]["counts"])[:, 1:].tolist() == counts.tolist()
    by_both = crosstab[crosstab.index != "total"].query("sex != 'total'").groupby(["ill", "sex"])["count"].sum()
    assert by_both.unstack().to_numpy().tolist() == counts.tolist()
    assert correlations["r"].tolist() == pytest.approx([rows["age"].corr(rows["dose"])], abs=1e-6)
    assert (tmp_path / "table.tex").read_text(encoding="utf-8").startswith(r"\begin{tabular}")
