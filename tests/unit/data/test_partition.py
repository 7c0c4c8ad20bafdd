"""Partitions: disjoint, complete, repeatable, large enough, and true to their rule."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.raising import raises

from fedcore.data import Dataset, Split, client_data, load_digits, partition
from fedcore.data.partition import MIN_TRAIN_EXAMPLES
from fedcore.errors import ConfigurationError, DataError


def dataset(examples, classes=5, owners=12, seed=0, test_share=4):
    rng = np.random.default_rng(seed)

    def half(n):
        x = np.arange(n, dtype=np.float32)[:, None]
        return Split(x=x, y=rng.integers(0, classes, n), groups=np.arange(n) % owners)

    return Dataset(
        name="made up",
        train=half(examples),
        test=half(examples // test_share),
        classes=classes,
        group_names=tuple(str(i) for i in range(owners)),
    )


RULES = st.one_of(
    st.sampled_from(["iid", "natural"]),
    st.floats(0.3, 100).map(lambda alpha: f"dirichlet:{alpha}"),
    st.integers(1, 4).map(lambda count: f"shards:{count}"),
    st.floats(0.3, 100).map(lambda alpha: f"quantity:{alpha}"),
    st.floats(0.1, 3).map(lambda sigma: f"lognormal:{sigma}"),
    st.floats(0.1, 3).map(lambda exponent: f"power-law:{exponent}"),
)


@given(
    rule=RULES,
    examples=st.integers(200, 600),
    clients=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_parts_are_disjoint_complete_sorted_and_repeatable(rule, examples, clients, seed):
    data = dataset(examples, seed=seed % 7)
    parts = partition(rule, data, clients=clients, seed=seed)
    again = partition(rule, data, clients=clients, seed=seed)
    assert len(parts) == clients
    for name, whole in (("train", data.train), ("test", data.test)):
        rows = [getattr(part, name) for part in parts]
        assert sorted(np.concatenate(rows).tolist()) == list(range(len(whole)))
        for one, other in zip(rows, again, strict=True):
            assert one.dtype == np.int64
            assert (np.diff(one) > 0).all()
            np.testing.assert_array_equal(one, getattr(other, name))
    assert min(len(part.test) for part in parts) >= 1
    assert min(len(part.train) for part in parts) >= MIN_TRAIN_EXAMPLES


@pytest.mark.parametrize("rule", ["iid", "dirichlet:0.5", "shards:2"])
def test_another_seed_is_another_partition(rule):
    data = dataset(400)
    one, other = (partition(rule, data, clients=4, seed=seed)[0].train for seed in (1, 2))
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("rule", ["iid", "dirichlet:0.5", "shards:2", "natural"])
def test_one_client_holds_everything_in_order(rule):
    data = dataset(100)
    (part,) = partition(rule, data, clients=1, seed=3)
    np.testing.assert_array_equal(part.train, np.arange(100))
    np.testing.assert_array_equal(part.test, np.arange(25))


def histograms(split, rows_by_client, classes):
    counts = np.stack([np.bincount(split.y[r], minlength=classes) for r in rows_by_client])
    return counts / counts.sum(axis=0)


def test_dirichlet_gives_test_parts_the_mix_of_the_training_parts():
    data = load_digits()
    parts = partition("dirichlet:0.5", data, clients=4, seed=42)
    train = histograms(data.train, [p.train for p in parts], 10)
    test = histograms(data.test, [p.test for p in parts], 10)
    # Each class of the test half has about 36 images, and a cut is off by half an image at most.
    assert np.abs(train - test).max() < 0.05
    # Non-IID: with equal shares every entry would be 0.25.
    assert train.max() > 0.6


def test_alpha_decides_the_skew():
    data = dataset(4000, classes=10)

    def skew(alpha):
        parts = partition(f"dirichlet:{alpha}", data, clients=5, seed=1)
        return histograms(data.train, [p.train for p in parts], 10).std()

    assert skew(0.1) > 1.5 * skew(1.0) > 15 * skew(1000.0)


def test_shards_leave_a_client_few_classes_of_equal_size():
    data = dataset(1000, classes=10)
    parts = partition("shards:2", data, clients=10, seed=5)
    assert {len(p.train) for p in parts} == {100}
    # A shard of 50 touches at most two of ten classes of about 100, two shards at most four.
    assert max(len(np.unique(data.train.y[p.train])) for p in parts) <= 4
    for part in parts:
        assert set(data.test.y[part.test]) & set(data.train.y[part.train])


def test_natural_deals_owners_out_in_turn():
    data = dataset(240, owners=12)
    parts = partition("natural", data, clients=5, seed=0)
    assert set(data.train.groups[parts[1].train]) == {1, 6, 11}
    assert set(data.test.groups[parts[1].test]) == {1, 6, 11}


def test_client_data_takes_the_rows_of_the_part():
    data = dataset(100)
    part = partition("iid", data, clients=3, seed=9)[2]
    train, test = client_data(data, "iid", client=2, clients=3, seed=9)
    np.testing.assert_array_equal(train.x[:, 0], part.train)
    np.testing.assert_array_equal(test.y, data.test.y[part.test])


@pytest.mark.parametrize(
    "rule",
    [
        *("", "IID", "iid:", "iid:3", "natural:2", "dirichlet", "dirichlet:", "dirichlet:x"),
        *("dirichlet:0", "dirichlet:-1", "dirichlet:inf", "dirichlet:nan"),
        *("shards", "shards:0", "shards:1.5"),
    ],
)
def test_a_rule_that_does_not_exist_is_refused(rule):
    with pytest.raises(ConfigurationError, match="partition"):
        partition(rule, dataset(100), clients=2, seed=0)


def test_a_rule_that_does_not_fit_is_refused_with_the_way_out():
    data = dataset(100)
    with raises(ConfigurationError, check="natural-owners", match=r"\b12\b"):
        partition("natural", data, clients=13, seed=0)
    with raises(ConfigurationError, check="no-clients"):
        partition("iid", data, clients=0, seed=0)
    with raises(ConfigurationError, check="no-such-client", match=r"\b4\b"):
        client_data(data, "iid", client=4, clients=4, seed=0)
    with raises(DataError, check="too-few-examples", match=r"\b101\b"):
        partition("iid", data, clients=101, seed=0)
    with raises(DataError, check="too-few-examples", match=r"\b100\b.*\b11\b.*\b10\b.*\"iid\""):
        partition("dirichlet:1000", data, clients=11, seed=0)
    with raises(DataError, check="no-draw", match="alpha"):
        partition("dirichlet:0.001", data, clients=8, seed=0)
    with raises(ConfigurationError, check="no-natural-owners"):
        partition("natural", load_digits(), clients=2, seed=0)


def test_windows_of_text_have_no_class_to_divide_by():
    text = Split(x=np.zeros((50, 8), np.int64), y=np.zeros((50, 8), np.int64))
    data = Dataset(name="text", train=text, test=text, classes=3)
    with raises(ConfigurationError, check="no-labels", match="iid.*natural"):
        partition("shards:2", data, clients=2, seed=0)
    assert len(partition("iid", data, clients=2, seed=0)) == 2


@pytest.mark.parametrize("count", [1, 2, 5])
def test_k_labels_gives_every_client_k_labels_and_divides_each_evenly(count):
    data = dataset(1000, classes=5)
    parts = partition(f"labels:{count}", data, clients=10, seed=3)
    for half, name in ((data.train, "train"), (data.test, "test")):
        rows = [getattr(part, name) for part in parts]
        assert sorted(np.concatenate(rows).tolist()) == list(range(len(half)))
        held = np.array([np.bincount(half.y[part], minlength=5) for part in rows])
        assert ((held > 0).sum(axis=1) == count).all()
        for of_label in held.T:
            assert np.ptp(of_label[of_label > 0]) <= 1
        if name == "train":
            owned = held > 0
        else:
            np.testing.assert_array_equal(held > 0, owned)


@pytest.mark.parametrize(
    ("rule", "clients", "message"),
    [
        ("labels:6", 10, {"check": "too-many-labels", "match": r"6\D+5"}),
        ("labels:1", 4, {"check": "too-few-labels", "match": r"\b5\b"}),
    ],
)
def test_k_labels_that_cannot_be_are_refused(rule, clients, message):
    with raises(ConfigurationError, **message):
        partition(rule, dataset(1000), clients=clients, seed=0)


def test_sizes_follow_the_power_law_beside_each_clients_least():
    data = dataset(10_000)
    sizes = sorted((len(part.train) for part in partition("power-law:2", data, clients=8, seed=1)), reverse=True)
    shares = np.arange(1, 9.0) ** -2
    expected = MIN_TRAIN_EXAMPLES + shares / shares.sum() * (10_000 - 8 * MIN_TRAIN_EXAMPLES)
    np.testing.assert_allclose(sizes, expected, atol=1)


@pytest.mark.parametrize(
    ("rule", "shares"),
    [
        ("lognormal:2", lambda z: np.exp(2 * np.random.default_rng(4).standard_normal(20))),
        ("quantity:0.5", lambda z: np.random.default_rng(4).dirichlet(np.full(20, 0.5))),
    ],
)
def test_sizes_are_those_of_the_distribution_in_both_halves(rule, shares):
    data = dataset(40_000, test_share=2)
    parts, drawn = partition(rule, data, clients=20, seed=4), shares(None)
    for name, whole, least in (("train", 40_000, MIN_TRAIN_EXAMPLES), ("test", 20_000, 1)):
        expected = least + drawn / drawn.sum() * (whole - 20 * least)
        np.testing.assert_allclose([len(getattr(part, name)) for part in parts], expected, atol=1)


@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")  # of pyarrow, in datasets
class TestFlowersOwn:
    def test_without_the_extra_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "flwr_datasets", None)
        with raises(ConfigurationError, check="not-installed", match=r"fedcore\[flower-datasets\]"):
            partition("flower:IidPartitioner", dataset(400), clients=3, seed=0)

    @pytest.mark.parametrize(
        "rule",
        [
            "IidPartitioner",
            "LinearPartitioner",
            "DirichletPartitioner:alpha=0.7,self_balancing=true",
            "PathologicalPartitioner:num_classes_per_partition=2,class_assignment_mode=deterministic",
            "ShardPartitioner:num_shards_per_partition=2,keep_incomplete_shard=true",
        ],
    )
    def test_its_parts_are_disjoint_and_complete(self, rule):
        pytest.importorskip("flwr_datasets", reason="the extra flower-datasets is not installed")
        data = dataset(1000)
        parts = partition(f"flower:{rule}", data, clients=5, seed=2)
        for name, whole in (("train", data.train), ("test", data.test)):
            rows = np.concatenate([getattr(part, name) for part in parts])
            assert sorted(rows.tolist()) == list(range(len(whole)))

    @pytest.mark.parametrize(
        ("rule", "error"),
        [
            ("DirichletPartitoner:alpha=1", {"match": "'DirichletPartitioner'"}),
            ("DirichletPartitioner:alhpa=1", {"match": "'alpha'"}),
            ("DirichletPartitioner:alpha", {"match": "KEY=VALUE"}),
            ("DirichletPartitioner", {"check": "partitioner"}),
        ],
    )
    def test_what_it_does_not_have_is_refused(self, rule, error):
        pytest.importorskip("flwr_datasets", reason="the extra flower-datasets is not installed")
        with raises(ConfigurationError, **error):
            partition(f"flower:{rule}", dataset(400), clients=3, seed=0)
