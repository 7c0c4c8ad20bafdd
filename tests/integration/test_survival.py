"""Survival curves, Cox regressions and random effects of sites, as a person asks them: a CSV file at each site, an app
of `fedcore new` with a study plan, and one of the sites that leaves in between.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.commands import forked
from support.deployment import Deployment
from support.later import Later

formulas = Later("statsmodels.formula.api")
hazards = Later("statsmodels.duration.hazard_regression")
curves = Later("statsmodels.duration.survfunc")

SITES = 5
NAMES = tuple(f"client-{number}" for number in range(1, SITES + 1))
COX = "Surv(weeks, died) ~ age + C(sex)"
PLAN = f"""
[[question]]
name = "curves"
survival = "weeks died"
groups = "sex"
runs = 9

[[question]]
name = "hazards"
glm = "{COX}"
runs = 9

[[question]]
name = "hazards-of-sites"
glm = "{COX}"
site-effects = "fixed"

[[question]]
name = "cost"
glm = "cost ~ age + C(sex)"
family = "linear"
site-effects = "random"
"""


def files(folder: Path) -> list[pd.DataFrame]:
    """Whole weeks, at each of which five and more have an event, and nobody is censored but at the end."""
    chance = np.random.default_rng(3)
    parts = []
    for number in range(1, SITES + 1):
        rows = 120 + 20 * number
        age, sex = chance.integers(30, 90, rows), chance.choice(["F", "M"], rows)
        rate = 0.12 * np.exp(0.02 * (age - 60) + 0.4 * (sex == "M"))
        time = np.ceil(chance.exponential(1 / rate))
        frame = pd.DataFrame(
            {
                "age": age,
                "sex": sex,
                "weeks": np.minimum(time, 12).astype(int),
                "cost": (1000 + 10 * age + 200 * chance.normal() + chance.normal(0, 100, rows)).round(2),
                "died": np.where(time <= 12, "yes", "no"),
            }
        )
        frame.to_csv(folder / f"{number}.csv", index=False)
        parts.append(frame)
    return parts


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, pd.DataFrame]]:
    """The federation, and the rows of all sites."""
    folder = tmp_path_factory.mktemp("clinic")
    rows = pd.concat([frame.assign(site=at) for at, frame in enumerate(files(folder))], ignore_index=True)
    made = forked("new", folder / "clinic", "--csv", folder / "1.csv", "--target", "died")
    assert made.returncode == 0, made.stderr
    project = folder / "clinic" / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    assert "[tool.fedcore.statistics]" in text
    project.write_text(text.replace("[tool.fedcore.statistics]", '[tool.fedcore.statistics]\nplan = "plan.toml"'))
    (folder / "clinic" / "plan.toml").write_text(PLAN, encoding="utf-8")
    schema = folder / "clinic" / "schema.toml"
    bounds = {"weeks": (0, 12), "age": (0, 120), "cost": (0, 3000)}
    lines = [bounded(line, bounds) for line in schema.read_text(encoding="utf-8").splitlines()]
    schema.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with Deployment.open(folder, clients=SITES) as deployment:
        deployment.app = folder / "clinic"
        deployment.start_server()
        for number in range(1, SITES + 1):
            start(deployment, number)
        for name in NAMES:
            deployment.wait_for_log(name, "connected")
        yield deployment, rows


def bounded(line: str, bounds: dict[str, tuple[int, int]]) -> str:
    """A line of a schema with the bounds that all sites agree to."""
    name = line.partition(" ")[0].strip('"')
    if name not in bounds:
        return line
    low, high = bounds[name]
    return re.sub(r"low = \S+, high = [^,}]+", f"low = {low}, high = {high}", line)


def start(deployment: Deployment, number: int, dies_after: str = "") -> None:
    file = deployment.folder / f"{number}.csv"
    deployment.start_client(f"client-{number}", "--node-config", f'csv="{file}"', dies_after=dies_after)


def ask(deployment: Deployment, *options: str | Path) -> dict[str, Any]:
    done = forked("stats", deployment.app, "--operator", deployment.federation.operator, "--json", *options)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_survival_curves_are_those_of_all_rows(clinic: tuple[Deployment, pd.DataFrame]) -> None:
    deployment, rows = clinic
    answer = ask(deployment, "--survival", "weeks died", "--by", "sex")
    for sex in ("F", "M"):
        group = rows[rows["sex"] == sex]
        theirs = curves.SurvfuncRight(group["weeks"], (group["died"] == "yes").astype(int))
        ours = answer["curves"][f"sex = {sex}"]
        assert ours["times"] == theirs.surv_times.tolist()
        assert ours["survival"] == pytest.approx(theirs.surv_prob.tolist(), abs=1e-9)
        assert ours["at_risk"] == theirs.n_risk.tolist()
    statistic, p = curves.survdiff(rows["weeks"], (rows["died"] == "yes").astype(int), rows["sex"])
    assert (answer["log_rank"]["chi_squared"], answer["log_rank"]["p"]) == pytest.approx((statistic, p), rel=1e-9)


@pytest.mark.parametrize("effects", ["", "fixed"])
def test_a_cox_regression_is_that_of_all_rows(clinic: tuple[Deployment, pd.DataFrame], effects: str) -> None:
    deployment, rows = clinic
    answer = ask(deployment, "--glm", COX, *(("--site-effects", effects) if effects else ()))
    assert_cox(answer, rows, strata=bool(effects))


def assert_cox(answer: dict[str, Any], rows: pd.DataFrame, *, strata: bool = False) -> None:
    design = np.stack([rows["age"], rows["sex"] == "M"], axis=1).astype(float)
    status, sites = (rows["died"] == "yes").astype(int).to_numpy(), rows["site"].to_numpy() if strata else None
    model = hazards.PHReg(rows["weeks"].to_numpy(), design, status=status, strata=sites, ties="efron")
    theirs = model.fit(start_params=model.fit(disp=0).params, disp=0, method="newton", tol=1e-13)
    ours = answer["terms"].values()
    assert [term["coefficient"] for term in ours] == pytest.approx(theirs.params.tolist(), rel=1e-6)
    assert [term["standard_error"] for term in ours] == pytest.approx(theirs.bse.tolist(), rel=1e-6)
    assert answer["clients"] == SITES


def test_random_effects_of_sites_are_those_of_mixed_lm(clinic: tuple[Deployment, pd.DataFrame]) -> None:
    deployment, rows = clinic
    words = ("--glm", "cost ~ age + C(sex)", "--family", "linear", "--site-effects", "random")
    answer = ask(deployment, *words)
    model = formulas.mixedlm("cost ~ age + C(sex)", rows, groups="site")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says so if it comes no closer than rounding lets it
        theirs = model.fit(reml=True, method=["bfgs"], gtol=1e-11)
    ours, names = answer["terms"].values(), list(answer["terms"])
    assert [term["coefficient"] for term in ours] == pytest.approx(theirs.fe_params[names].tolist(), rel=1e-6)
    assert [term["standard_error"] for term in ours] == pytest.approx(theirs.bse_fe[names].tolist(), rel=1e-5)
    assert answer["site_variance"] == pytest.approx(float(theirs.cov_re.iloc[0, 0]), rel=1e-4)


def test_what_the_plan_does_not_name_is_refused(clinic: tuple[Deployment, pd.DataFrame]) -> None:
    deployment, _ = clinic
    words = ("--glm", "died ~ age", "--site-effects", "random")
    done = forked("stats", deployment.app, "--operator", deployment.federation.operator, *words)
    assert done.returncode != 0
    assert "not-planned" in done.stderr


def test_a_site_that_leaves_between_two_steps_ends_it(clinic: tuple[Deployment, pd.DataFrame]) -> None:
    """It is in the first sum. There are no coefficients of the others; once it is back, there are those of all."""
    deployment, rows = clinic
    name, length = NAMES[-1], len(deployment.log(NAMES[-1]))
    deployment.kill(name)
    start(deployment, SITES, dies_after="consistency")
    deployment.wait_for_log(name, "connected", after=length)
    words = ("--operator", deployment.federation.operator, "--glm", COX, "--set", "join-seconds=2")
    done = forked("stats", deployment.app, *words)
    assert done.returncode != 0
    length = len(deployment.log(name))
    start(deployment, SITES)
    deployment.wait_for_log(name, "connected", after=length)
    assert_cox(ask(deployment, "--glm", COX), rows)
