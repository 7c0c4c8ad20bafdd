import pytest

from fedcore.assignments import override, parse_assignments
from fedcore.config import JobSettings
from fedcore.errors import CohortBelowMinimum, ConfigurationError, UnknownKey
from fedcore.needs import check_asked, check_needs


def test_settings_survive_the_round_trip() -> None:
    settings = JobSettings.from_mapping({"field-bits": 21, "clip-norm": 1, "aggregation": "plain"})
    assert settings.clip_norm == 1.0
    assert JobSettings.from_mapping(settings.to_mapping()) == settings


def test_noise_or_a_budget_makes_a_run_private() -> None:
    assert JobSettings.from_mapping({"clip-norm": 1, "dp-epsilon": 8, "dp-rounds": 10}).private
    assert JobSettings.from_mapping({"clip-norm": 1, "dp-noise-multiplier": 1}).private
    assert not JobSettings.from_mapping({"clip-norm": 1, "dp-rounds": 10}).private


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"field-bits": 20}, "one of 8, 10, 12, 16, 21, 32, auto"),
        ({"upload-fraction": 1.5}, "upload-fraction must be from 0.0010 to 1"),
        ({"upload-fraction": 0.1, "aggregation": "plain"}, "upload-fraction needs aggregation"),
        ({"field-bits": 8, "clipping": "warn"}, "field-bits = 8 cannot be used with clipping"),
        (
            {"field-bits": "auto", "clip-norm": 1, "dp-noise-multiplier": 1},
            "field-bits = auto cannot be used with differential privacy",
        ),
        ({"aggregation": "open"}, "one of secure, plain"),
        ({"w-max": 0}, "greater than 0"),
        ({"w-max": 1.5}, "must be a int"),
        ({"w-max": True}, "must be a int"),
        ({"step-seconds": float("nan")}, "must be a float"),
        ({"clip-norm": -1.0}, "must not be negative"),
        ({"dp-epsilon": -1.0}, "dp-epsilon must not be negative"),
        ({"dp-rounds": -1}, "dp-rounds must not be negative"),
        ({"dp-delta": 0.0}, "dp-delta must be greater than 0"),
        ({"dp-delta": 1}, "dp-delta must be greater than 0 and less than 1"),
        ({"dp-mechanism": "laplace"}, "one of skellam, discrete-gaussian"),
        ({"dp-noise-multiplier": 1}, "needs clip-norm"),
        ({"asynchrony": "always"}, "one of none, buffered"),
        ({"buffer-size": 3}, 'buffer-size is for asynchrony = "buffered"'),
        ({"max-staleness": 3}, 'max-staleness is for asynchrony = "buffered"'),
        ({"staleness": "constant"}, 'staleness is for asynchrony = "buffered"'),
        ({"concurrency": 3}, 'concurrency is for asynchrony = "buffered"'),
        ({"asynchrony": "buffered", "aggregation": "plain"}, 'needs aggregation = "secure"'),
        ({"asynchrony": "buffered", "over-selection": 0.1}, "over-selection cannot be used"),
        ({"asynchrony": "buffered", "clip-norm": 1, "dp-noise-multiplier": 1}, "privacy cannot be used"),
        ({"asynchrony": "buffered", "groups": 2}, "groups cannot be used"),
        ({"asynchrony": "buffered", "max-staleness": 101}, "max-staleness must be from 0 to 100"),
        ({"dp-epsilon": 8, "clip-norm": 1}, "needs dp-rounds"),
        ({"dp-noise-multiplier": 1, "clip-norm": 1, "aggregation": "plain"}, 'needs aggregation = "secure"'),
    ],
)
def test_bad_settings_are_refused(values: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        JobSettings.from_mapping(values)


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(UnknownKey, match="did you mean 'liveness-seconds'"):
        JobSettings.from_mapping({"livenes-seconds": 3})
    with pytest.raises(UnknownKey, match=r"known keys: .*w-max"):
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "expected key=value, not 'lr'"),
        ("", "expected key=value, not ''"),
        ("=3", "expected key=value, not '=3'"),
        ("lr=0.1 rounds", "expected key=value, not 'rounds'"),
        ("name=two words", "expected key=value, not 'words'"),
        ("lr=0.1 name='two", 'unbalanced quotes in "name=\'two"'),
        ('name="a"b" c=1', "unbalanced quotes"),
    ],
)
def test_what_is_no_assignment_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_assignments([text])


def test_an_override_keeps_types() -> None:
    assert override({"lr": 0.1, "n": 1}, {"lr": 1}, "x") == {"lr": 1.0, "n": 1}
    with pytest.raises(ConfigurationError, match="n in x must be of type int, not float"):
        override({"n": 1}, {"n": 1.5}, "x")
    with pytest.raises(UnknownKey, match="did you mean 'lr'"):
        override({"lr": 0.1}, {"lrr": 1.0}, "x")


def test_groups_need_masks_and_neither_noise_nor_a_race() -> None:
    assert JobSettings().least_groups == 1
    assert JobSettings(groups=5).least_groups == 3
    assert JobSettings(groups=5, min_groups=2).least_groups == 2
    assert "groups" in JobSettings(groups=5).for_clients()
    assert "min-groups" not in JobSettings(groups=5).for_clients()
    for fields, match in (
        ({"aggregation": "plain"}, "groups needs aggregation"),
        ({"dp_noise_multiplier": 1.0, "clip_norm": 1.0}, "groups cannot be used with differential privacy"),
        ({"over_selection": 0.1}, "groups cannot be used with over-selection"),
        ({"min_groups": 5}, "min-groups is 5, but there are groups = 4"),
        ({"groups": 0}, "groups must be greater than 0"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            JobSettings(**{"groups": 4, **fields})


def test_each_group_needs_as_many_clients_as_a_cohort_may_have_at_least() -> None:
    check_needs(JobSettings(groups=4, max_corrupt=0.0), 12, 3)
    check_needs(JobSettings(groups=2), 12, 5)
    with pytest.raises(ConfigurationError, match=r"groups = 3 needs 15 clients, .*at most 2 groups"):
        check_needs(JobSettings(groups=3), 12, 5)
    with pytest.raises(CohortBelowMinimum, match="asks 11 clients to train, 4 groups of at least 3 need 12"):
        check_asked(11, JobSettings(groups=4, max_corrupt=0.0), 12, 3, message_type="train")
    check_asked(11, JobSettings(groups=4, max_corrupt=0.0), 12, 3, message_type="evaluate")
