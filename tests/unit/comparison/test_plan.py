"""Which runs follow from a comparison, and what is refused before the first process starts."""

from pathlib import Path
from typing import Any

import pytest
from support.raising import raises
from support.tiny import TINY

from fedcore.comparison.modes import MODES, every_mode, parse_modes
from fedcore.comparison.plan import CompareJob, parse_kill, parse_seeds, parse_sweep, plan
from fedcore.comparison.run import Kill
from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.flower.app import FlowerApp
from fedcore.simulation.devices.network import Network

DIGITS = Path(__file__).parents[3] / "examples" / "digits"


def job(modes: str = "federated,centralized", *, app: Path = DIGITS, **changes: Any) -> CompareJob:
    values = {"modes": parse_modes(modes), "sites": 4, "out": Path("/nowhere"), **changes}
    return CompareJob(app=FlowerApp.load(app), **values)


def test_every_mode_with_every_seed_in_a_folder_of_its_own() -> None:
    runs = plan(job(seeds=(42, 43), partition="iid", run_config={"lr": 1}))
    assert [(run.mode.name, run.seed) for run in runs] == [
        ("federated", 42), ("federated", 43), ("centralized", 42), ("centralized", 43),
    ]  # fmt: skip
    assert len({run.folder for run in runs}) == 4
    assert {run.config["partition"] for run in runs} == {"iid"}
    assert {run.config["lr"] for run in runs} == {1.0}
    assert [run.config["seed"] for run in runs] == [42, 43, 42, 43]


def test_without_seeds_there_is_the_apps_own() -> None:
    assert [run.seed for run in plan(job(run_config={"seed": 7}))] == [7, 7]
    assert [run.seed for run in plan(job(app=TINY))] == [0, 0], "an app that has none runs once"


def test_a_sweep_holds_for_the_modes_that_know_the_key() -> None:
    sweep = {"lr": (0.01, 0.1), "s": (0, 3.0), "field-bits": (21, 32), "batch-size": (8,)}
    runs = plan(job("federated,ps-ssp,centralized[lr=0.5]", sweep=sweep))
    points = [(run.mode.name, dict(run.point)) for run in runs]
    assert points == [
        ("federated", {"lr": 0.01, "field-bits": 21}), ("federated", {"lr": 0.01, "field-bits": 32}),
        ("federated", {"lr": 0.1, "field-bits": 21}), ("federated", {"lr": 0.1, "field-bits": 32}),
        ("ps-ssp", {"lr": 0.01, "s": 0}), ("ps-ssp", {"lr": 0.01, "s": 3.0}),
        ("ps-ssp", {"lr": 0.1, "s": 0}), ("ps-ssp", {"lr": 0.1, "s": 3.0}),
        ("centralized", {}),
    ]  # fmt: skip
    assert [run.options["s"] for run in runs if run.mode.name == "ps-ssp"] == [0.0, 3.0, 0.0, 3.0]
    assert runs[1].settings["field-bits"] == 32
    assert runs[-1].config["lr"] == 0.5, "what a mode says itself holds"
    assert {run.config["batch-size"] for run in runs} == {8}, "a single value is nothing to sweep over"
    assert str(runs[1]) == "federated, lr=0.01, field-bits=32, seed 42"


def test_the_brackets_of_a_mode_are_for_it_alone() -> None:
    sgd, adam = plan(job("federated,federated[strategy=fedadam,server-lr=0.5,field-bits=21]"))
    assert (sgd.config["strategy"], adam.config["strategy"]) == ("fedavg", "fedadam")
    assert (sgd.settings["field-bits"], adam.settings["field-bits"]) == (16, 21)
    assert (sgd.config["server-lr"], adam.config["server-lr"]) == (0.0, 0.5)


def test_the_mode_decides_whether_rounds_wait_for_everybody() -> None:
    waits, runs = parse_modes("federated,federated-async[buffer-size=5]")
    app = {"asynchrony": "buffered", "buffer-size": 3}
    assert waits.mode.settings(app, sites=8)["asynchrony"] == "none"
    settings = runs.mode.settings({**app, "buffer-size": 5}, sites=8)
    assert (settings["asynchrony"], settings["buffer-size"], settings["min-clients"]) == ("buffered", 5, 0)
    assert runs.mode.settings({}, sites=8)["buffer-size"] == 4
    with raises(ConfigurationError, check="buffer-below-minimum", match="buffer-size"):
        runs.mode.settings({"buffer-size": 1}, sites=8)


def test_federated_modes_have_their_own_settings() -> None:
    private = {"clip-norm": (1.0,), "dp-noise-multiplier": (1.0,)}
    runs = plan(job("federated,federated-plain,federated-dp", sweep=private))
    assert [run.settings["aggregation"] for run in runs] == ["secure", "plain", "secure"]
    assert [run.settings["dp-noise-multiplier"] for run in runs] == [0.0, 0.0, 1.0]
    assert {run.settings["min-clients"] for run in runs} == {4}
    assert {run.settings["clip-norm"] for run in runs} == {1.0}


@pytest.mark.parametrize(
    ("modes", "changes", "message"),
    [
        ("centralized", {"sweep": {"lrr": (0.1,)}}, {"match": "'lrr'.*'lr'"}),
        (
            "centralized",
            {"sweep": {"field-bits": (16,)}},
            {"check": "other-modes", "match": "field-bits.*federated.*federated-plain.*federated-async"},
        ),
        ("federated", {"sweep": {"dp-epsilon": (1.0,)}}, {"check": "other-modes", "match": "dp-epsilon.*federated-dp"}),
        ("federated-dp", {}, {"match": "federated-dp.*dp-epsilon.*dp-noise-multiplier.*federated-dp"}),
        ("federated[dp-epsilon=1]", {}, {"match": r"federated\[dp-epsilon=1\].*federated-dp"}),
        ("federated", {"sweep": {"aggregation": ("plain",)}}, {"check": "set-by-option", "match": "aggregation"}),
        ("federated", {"sweep": {"seed": (1, 2)}}, {"check": "set-by-option", "match": "--seeds"}),
        ("local[h=3]", {}, {"match": r"local\[h=3\].*'h'.*--modes"}),
        ("local[lr=fast]", {}, {"match": r"local\[lr=fast\].*lr.*'fast'"}),
        ("federated", {"sites": 1}, {"check": "too-few-clients"}),
        ("federated", {"kill": Kill(site=4, round=1)}, {"check": "kill-place", "match": "client-5@1"}),
        ("federated", {"kill": Kill(site=0, round=15)}, {"check": "kill-place", "match": "client-1@15"}),
        ("federated", {"network": Network.parse("lan,slow=5:2")}, {"check": "no-such-client", "match": "--network"}),
        ("federated", {"app": TINY, "seeds": (1,)}, {"check": "key-needed", "match": "--seeds.*'seed'.*tiny"}),
        ("federated", {"app": TINY, "partition": "iid"}, {"check": "key-needed", "match": "--partition.*'partition'"}),
        ("ps-ssp", {"sweep": {"s": (-1.0,)}}, {"match": "ps-ssp.*-1"}),
        ("diloco[h=0]", {}, {"match": r"\bh\b.*1"}),
        ("allreduce[hook=fp8]", {}, {"match": "hook.*none.*fp16.*bf16.*powersgd.*'fp8'"}),
    ],
)
def test_wrong_input_is_refused(modes: str, changes: dict[str, Any], message: dict[str, str]) -> None:
    with raises(ConfigurationError, **message):
        plan(job(modes, **changes))


def test_every_problem_of_the_modes_is_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        plan(job("local[h=3],federated,centralized[lr=fast]"))
    assert len(str(caught.value).splitlines()) == 2


def test_every_mode_can_be_planned() -> None:
    assert set(every_mode()) == set(MODES) - {"federated-dp"}
    assert len(plan(job(",".join(every_mode())))) == len(every_mode())


@pytest.mark.parametrize(
    ("text", "seeds"), [("", ()), ("3", (42, 43, 44)), ("1", (42,)), ("7,9", (7, 9)), ("7,", (7,))]
)
def test_seeds(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text, 42) == seeds


@pytest.mark.parametrize("text", ["0", "-1", "x", "1,1", "1,x", ","])
def test_seeds_that_are_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--seeds"):
        parse_seeds(text, 42)


def test_the_number_of_seeds_needs_the_first() -> None:
    with raises(ConfigurationError, check="key-needed", match="--seeds.*'seed'"):
        parse_seeds("2", None)


def test_values_of_a_sweep() -> None:
    words = ["lr=0.01,0.1", 'name="a,b",c s=inf,0', "partition=dirichlet:0.3,iid"]
    assert parse_sweep(words) == {
        "lr": (0.01, 0.1), "name": ("a,b", "c"), "s": (float("inf"), 0), "partition": ("dirichlet:0.3", "iid"),
    }  # fmt: skip


@pytest.mark.parametrize("words", [["lr"], ["lr="], ["lr=1,1"], ["lr=1", "lr=2"], ["=1"]])
def test_sweeps_that_are_none(words: list[str]) -> None:
    with pytest.raises(ConfigurationError):
        parse_sweep(words)


def test_a_kill() -> None:
    assert parse_kill("client-2@3") == Kill(site=1, round=3)
    for text in ("client-0@1", "client-2@0", "2@3", "client-2"):
        with pytest.raises(ConfigurationError, match="SITE@ROUND"):
            parse_kill(text)


def test_an_unknown_key_names_the_nearest_over_all_modes() -> None:
    with pytest.raises(UnknownKey, match="'shards'"):
        plan(job("ps-sync,centralized", sweep={"shard": (2,)}))
