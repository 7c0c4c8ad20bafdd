"""Studies: their plans hold for an app as it is, and their page has every comparison."""

from pathlib import Path

import pytest
from support.comparisons import made_up
from support.raising import raises

from fedcore.cli import completion
from fedcore.comparison.design.studies import STUDIES, Study, study_jobs, study_named, study_page
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.plan import CompareJob, plan
from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp

EXAMPLES = Path(__file__).parents[3] / "examples"


def job(**changes: object) -> CompareJob:
    values = {"app": FlowerApp.load(EXAMPLES / "digits"), "modes": parse_modes("ps-async"), "sites": 3}
    return CompareJob(**{**values, "out": Path("/nowhere"), **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_every_study_can_be_planned(study: Study) -> None:
    jobs = study_jobs(study, job(), own_modes=False)
    assert len({one.out for one in jobs.values()}) == len(jobs) == max(1, len(study.partitions))
    for name, one in jobs.items():
        runs = plan(one)
        assert (one.out.name, len({run.seed for run in runs})) == (name, study.seeds)
        assert {run.config["partition"] for run in runs} == {one.partition or one.app.run_config["partition"]}
        rounds = one.app.run_config["num-server-rounds"]
        private = [run.settings["dp-rounds"] for run in runs if run.chosen.mode.private]
        assert set(private) <= {rounds}
        assert bool(private) == (study.name == "privacy")


def test_what_the_command_says_is_laid_over_the_plan() -> None:
    (one,) = study_jobs(STUDIES["niid"], job(partition="iid", seeds=(7,)), own_modes=True).values()
    assert (one.partition, one.seeds, one.modes) == ("iid", (7,), parse_modes("ps-async"))


def test_another_name_is_refused_and_the_shell_knows_all_of_them() -> None:
    with raises(ConfigurationError, check="no-such-study"):
        study_named("nid")
    assert list(completion.STUDIES) == list(STUDIES)


@pytest.mark.parametrize("name", ["niid", "privacy"])
def test_the_page_of_a_study_has_every_comparison(name: str) -> None:
    both = {"partition-iid": made_up("local,federated"), "partition-dirichlet-0.1": made_up("federated,ps-ssp[s=1]")}
    page = study_page(STUDIES[name], both)
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| partition-")]
    assert [len(row) for row in rows] == [4, 4]
    assert STUDIES[name].question in page
    for case in both:
        assert f"]({case}/report.md)" in page
