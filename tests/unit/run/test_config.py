import re
from pathlib import Path

import pytest

from fedcore.errors import CohortBelowMinimum, ConfigurationError, UnknownKey
from fedcore.run.requirements import check_cohort_request, check_needs
from fedcore.run.settings import JobSettings
from fedcore.system.assignments import override, parse_assignments
from tests.support.raising import raises


def test_settings_survive_the_round_trip() -> None:
    settings = JobSettings.from_mapping({"field-bits": 21, "clip-norm": 1, "aggregation": "plain"})
    assert settings.clip_norm == 1.0
    assert JobSettings.from_mapping(settings.to_mapping()) == settings


def test_noise_or_a_budget_makes_a_run_private() -> None:
    assert JobSettings.from_mapping({"clip-norm": 1, "dp-epsilon": 8, "dp-rounds": 10}).private
    assert JobSettings.from_mapping({"clip-norm": 1, "dp-noise-multiplier": 1}).private
    assert not JobSettings.from_mapping({"clip-norm": 1, "dp-rounds": 10}).private


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"field-bits": 20}, ("choice", "field-bits.*20")),
        ({"upload-fraction": 1.5}, ("", "upload-fraction")),
        ({"upload-fraction": 0.1, "aggregation": "plain"}, ("needs-secure", "upload-fraction")),
        ({"field-bits": 8, "clipping": "warn"}, ("conflict", "field-bits.*clipping")),
        (
            {"field-bits": "auto", "clip-norm": 1, "dp-noise-multiplier": 1},
            ("conflict", "field-bits"),
        ),
        ({"aggregation": "open"}, ("choice", "aggregation")),
        ({"w-max": 0}, ("", "w-max")),
        ({"w-max": 1.5}, ("type", "w-max")),
        ({"w-max": True}, ("type", "w-max")),
        ({"step-seconds": float("nan")}, ("type", "step-seconds")),
        ({"clip-norm": -1.0}, ("", "clip-norm")),
        ({"dp-epsilon": -1.0}, ("", "dp-epsilon")),
        ({"dp-rounds": -1}, ("", "dp-rounds")),
        ({"dp-delta": 0.0}, ("", "dp-delta")),
        ({"dp-delta": 1}, ("", "dp-delta")),
        ({"dp-mechanism": "laplace"}, ("choice", "dp-mechanism")),
        ({"dp-noise-multiplier": 1}, ("", "clip-norm")),
        ({"norm-proof": "l3", "clip-norm": 1}, ("choice", "norm-proof")),
        ({"norm-proof": "l2"}, ("", "norm-proof.*clip-norm")),
        ({"norm-proof": "l2", "clip-norm": 1, "aggregation": "plain"}, ("needs-secure", "norm-proof")),
        ({"norm-proof": "l2", "clip-norm": 1, "dp-noise-multiplier": 1}, ("conflict", "norm-proof")),
        ({"norm-proof": "l2", "clip-norm": 1, "field-bits": 8}, ("conflict", "norm-proof")),
        ({"asynchrony": "always"}, ("choice", "asynchrony")),
        ({"buffer-size": 3}, ("conflict", "^buffer-size")),
        ({"max-staleness": 3}, ("conflict", "^max-staleness")),
        ({"staleness": "constant"}, ("conflict", "^staleness")),
        ({"concurrency": 3}, ("conflict", "^concurrency")),
        ({"asynchrony": "buffered", "aggregation": "plain"}, ("needs-secure", "asynchrony")),
        ({"asynchrony": "buffered", "over-selection": 0.1}, ("conflict", "over-selection")),
        ({"asynchrony": "buffered", "clip-norm": 1, "dp-noise-multiplier": 1}, ("conflict", "asynchrony")),
        ({"asynchrony": "buffered", "groups": 2}, ("conflict", "groups")),
        ({"asynchrony": "buffered", "max-staleness": 101}, ("", "max-staleness.*100")),
        ({"dp-epsilon": 8, "clip-norm": 1}, ("", "dp-rounds")),
        ({"dp-noise-multiplier": 1, "clip-norm": 1, "aggregation": "plain"}, ("", "aggregation")),
    ],
)
def test_bad_settings_are_refused(values: dict, reason: tuple[str, str]) -> None:
    check, names = reason
    with raises(ConfigurationError, check=check, match=names):
        JobSettings.from_mapping(values)


def test_an_unknown_key_names_the_nearest() -> None:
    with raises(UnknownKey, key="livenes-seconds", match="'liveness-seconds'"):
        JobSettings.from_mapping({"livenes-seconds": 3})
    with raises(UnknownKey, key="zzz", match="w-max"):
        JobSettings.from_mapping({"zzz": 3})


def test_assignments_are_toml_values_or_bare_words() -> None:
    words = ["lr=0.1", "rounds = 3", 'name="a=b"', "partition=dirichlet:0.5", "flag=true"]
    assert parse_assignments(words) == {
        "lr": 0.1,
        "rounds": 3,
        "name": "a=b",
        "partition": "dirichlet:0.5",
        "flag": True,
    }
    assert parse_assignments(["strategy="]) == {"strategy": ""}


def test_one_text_may_hold_several_assignments_as_flower_writes_them() -> None:
    text = """num-server-rounds=3 lr = 0.1  name="two words" \"kind\"="a\\"b" site='the north' list=[1, 2] flag=false"""
    assert parse_assignments([text, "lr=0.2"]) == {
        "num-server-rounds": 3,
        "lr": 0.2,
        "name": "two words",
        "kind": 'a"b',
        "site": "the north",
        "list": [1, 2],
        "flag": False,
    }


def test_a_file_of_them_has_tables_for_dots(tmp_path: Path) -> None:
    file = tmp_path / "changes.toml"
    file.write_text('lr = 0.5\nname = "a b"\n[train]\nsteps = 3\n', encoding="utf-8")
    assert parse_assignments(["lr=0.1", str(file), "name=c"]) == {"lr": 0.5, "train.steps": 3, "name": "c"}


@pytest.mark.parametrize("content", [None, b"lr = ", b"lr = '\xff'"], ids=["missing", "no TOML", "no text"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "changes.toml"
    if content is not None:
        file.write_bytes(content)
    with raises(ConfigurationError, check="file", match=re.escape(str(file))):
        parse_assignments([str(file)])


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("lr", "lr"),
        ("", ""),
        ("=3", "=3"),
        ("lr=0.1 rounds", "rounds"),
        ("name=two words", "words"),
        ("lr=0.1 name='two", "name='two"),
        ('name="a"b" c=1', 'name="a"b" c=1'),
    ],
)
def test_what_is_no_assignment_is_named(text: str, rest: str) -> None:
    check = "quotes" if {"'", '"'} & set(rest) else "no-assignment"
    with raises(ConfigurationError, check=check, match=re.escape(repr(rest))):
        parse_assignments([text])


def test_an_override_keeps_types() -> None:
    assert override({"lr": 0.1, "n": 1}, {"lr": 1}, "x") == {"lr": 1.0, "n": 1}
    with raises(ConfigurationError, check="type", match=r"\bn\b.*1\.5"):
        override({"n": 1}, {"n": 1.5}, "x")
    with raises(UnknownKey, key="lrr", match="'lr'"):
        override({"lr": 0.1}, {"lrr": 1.0}, "x")


def test_clients_hear_of_norm_proofs_where_there_are_some() -> None:
    assert "norm-proof" not in JobSettings().for_clients()
    assert JobSettings(norm_proof="l2", clip_norm=1.0).for_clients()["norm-proof"] == "l2"


def test_groups_need_masks_and_neither_noise_nor_a_race() -> None:
    assert JobSettings().least_groups == 1
    assert JobSettings(groups=5).least_groups == 3
    assert JobSettings(groups=5, min_groups=2).least_groups == 2
    assert "groups" in JobSettings(groups=5).for_clients()
    assert "min-groups" not in JobSettings(groups=5).for_clients()
    for fields, (check, names) in (
        ({"aggregation": "plain"}, ("needs-secure", "groups")),
        ({"dp_noise_multiplier": 1.0, "clip_norm": 1.0}, ("conflict", "groups")),
        ({"over_selection": 0.1}, ("conflict", "groups.*over-selection")),
        ({"min_groups": 5}, ("", "min-groups.*5.*4")),
        ({"groups": 0}, ("", "groups")),
    ):
        with raises(ConfigurationError, check=check, match=names):
            JobSettings(**{"groups": 4, **fields})


def test_each_group_needs_as_many_clients_as_a_cohort_may_have_at_least() -> None:
    check_needs(JobSettings(groups=4, max_corrupt=0.0), 12, 3)
    check_needs(JobSettings(groups=2), 12, 5)
    with raises(ConfigurationError, numbers=(3, 15, 12, 2), match="groups"):
        check_needs(JobSettings(groups=3), 12, 5)
    with raises(CohortBelowMinimum, numbers=(11, 4, 3, 12)):
        check_cohort_request(11, JobSettings(groups=4, max_corrupt=0.0), 12, 3, message_type="train")
    check_cohort_request(11, JobSettings(groups=4, max_corrupt=0.0), 12, 3, message_type="evaluate")
