"""`fedcore stats --glm` on a federation of real processes: three sites, a server, and an operator who sees sums."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.commands import forked
from support.deployment import Deployment
from support.later import Later

APP = Path(__file__).parents[1] / "apps" / "columns"
sys.path.insert(0, str(APP))
from columns_app.table import table  # noqa: E402

sm = Later("statsmodels.api")

ROWS, SITES = 200, 3
FORMULA = "dose ~ age + C(ward, [0, 1, 2, 3])"
QUERIES = 3
"""That a linear regression takes."""


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Three clients with the app whose columns are known."""
    with Deployment.open(tmp_path_factory.mktemp("sites"), clients=SITES) as deployment:
        deployment.app = APP
        deployment.start()
        yield deployment


def ask(sites: Deployment, formula: str, family: str, *options: str | Path) -> object:
    words = ("--run-config", f"rows={ROWS}", "--glm", formula, "--family", family)
    return forked("stats", APP, "--operator", sites.federation.operator, *words, *options)


def test_the_operator_reads_what_statsmodels_says_of_all_rows(sites: Deployment, tmp_path: Path) -> None:
    done = ask(sites, FORMULA, "linear", "--json", "--out", tmp_path / "table.csv")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rows = {name: np.concatenate([table(site, ROWS)[name] for site in range(SITES)]) for name in table(0, ROWS)}
    used = ~np.isnan(rows["age"])
    levels = [rows["ward"] == level for level in (1, 2, 3)]
    design = np.stack([np.ones(len(used)), rows["age"], *levels], axis=1)[used]
    model = sm.OLS(rows["dose"][used], design).fit()
    terms = found["terms"].values()
    assert [term["coefficient"] for term in terms] == pytest.approx(model.params.tolist(), rel=1e-6, abs=1e-9)
    assert [term["standard_error"] for term in terms] == pytest.approx(model.bse.tolist(), rel=1e-6)
    assert [term["p"] for term in terms] == pytest.approx(model.pvalues.tolist(), rel=1e-5)
    assert (found["rows"], found["rows"] + found["missing"]) == (int(used.sum()), len(used))
    assert (found["clients"], found["asked"], found["queries"]) == (SITES, SITES, QUERIES)
    assert (tmp_path / "table.csv").read_text().startswith("term,coefficient,standard_error,t,p,")


def test_the_operator_reads_survival_curves(sites: Deployment, tmp_path: Path) -> None:
    """Of ages as times, and of a ward as the event, which all wards are not."""
    words = ("--run-config", f"rows={ROWS}", "--bounds", "age=0:120", "--json", "--out", tmp_path / "curves.svg")
    refused = forked("stats", APP, "--operator", sites.federation.operator, "--survival", "age ward", *words)
    assert refused.returncode != 0
    assert "ward" in refused.stderr
    done = forked("stats", APP, "--operator", sites.federation.operator, "--survival", "age ward=2", *words)
    assert done.returncode == 0, done.stderr
    rows = {name: np.concatenate([table(site, ROWS)[name] for site in range(SITES)]) for name in table(0, ROWS)}
    used = rows["age"] >= 0
    curve = json.loads(done.stdout)["curves"]["all"]
    assert curve["rows"] == int(used.sum())
    assert sum(curve["died"]) == curve["events"] > int((rows["ward"][used] == 2).sum()) - 5
    assert (tmp_path / "curves.svg").read_text().startswith("<?xml")


def test_a_refusal_comes_back_to_the_operator(sites: Deployment) -> None:
    done = ask(sites, "ward ~ age", "logistic")
    assert done.returncode != 0
    assert "logistic" in done.stderr


def test_a_regression_that_a_client_leaves_ends(sites: Deployment) -> None:
    """The sums of a step are of all three or of nobody; without the third the owners of the others refuse."""
    sites.kill("client-3")
    done = ask(sites, FORMULA, "linear", "--set", "join-seconds=2")
    sites.start_clients("client-3")
    assert done.returncode != 0
    again = ask(sites, FORMULA, "linear", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["clients"] == SITES
