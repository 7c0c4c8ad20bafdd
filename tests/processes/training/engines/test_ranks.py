"""The ranks of the tests: results by rank, failures by name, and a new group after each of them."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from tests.support.ranks import RankFailed, Ranks


def summed(value):
    tensor = torch.tensor(value + dist.get_rank())
    dist.all_reduce(tensor)
    return int(tensor), os.getpid()


def failing(how):
    if dist.get_rank() == 1 and how == "raise":
        raise ValueError("on purpose")
    if dist.get_rank() == 1 and how == "end":
        os._exit(3)
    # Not a collective: gloo would notice that the peer is gone, too, perhaps before the test does.
    time.sleep(30)


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2) as group:
        yield group


def test_the_group_stays(ranks):
    first, second = ranks.run(summed, 10), ranks.run(summed, 20)
    assert [total for total, _ in first] == [21, 21]
    assert [pid for _, pid in first] == [pid for _, pid in second]


@pytest.mark.parametrize(
    ("how", "reason"),
    [("raise", "rank 1.*ValueError"), ("end", r"rank 1\D*$"), ("hang", r"ranks \[0, 1\]")],
)
def test_a_failure_is_named_and_the_next_call_has_a_new_group(ranks, how, reason):
    ranks.run(summed, 0)
    ranks.seconds = 1.0 if how == "hang" else 600.0
    with pytest.raises(RankFailed, match=f"(?s)^{reason}"):
        ranks.run(failing, how)
    ranks.seconds = 600.0
    assert [total for total, _ in ranks.run(summed, 1)] == [3, 3]
