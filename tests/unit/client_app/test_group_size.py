"""How many ranks, on which machines: what cannot be is refused in words that say what to do."""

from __future__ import annotations

import os
import socket

import pytest

from client_app.ranks.group_size import GroupSize, interface_of, needs_group, own_address
from fedcore.errors import ConfigurationError


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"nproc_per_node": 0}, "--nproc-per-node.* 0$"),
        ({"nnodes": 0}, "--nnodes.* 0$"),
        ({"node_rank": 1}, "--node-rank.* 1$"),
        ({"nnodes": 2, "node_rank": -1, "rdzv_endpoint": "a:1"}, "--node-rank.* -1$"),
        ({"nnodes": 2}, "--nnodes.*--rdzv-endpoint"),
        ({"rdzv_endpoint": "a:1"}, "--rdzv-endpoint.*--nnodes"),
        ({"nnodes": 2, "rdzv_endpoint": "a"}, "--rdzv-endpoint.*'a'"),
        ({"nnodes": 2, "rdzv_endpoint": ":29400"}, "--rdzv-endpoint.*':29400'"),
        ({"nnodes": 2, "rdzv_endpoint": "a:65536"}, "--rdzv-endpoint.*'a:65536'"),
        ({"nnodes": 2, "rdzv_endpoint": "a:0"}, "--rdzv-endpoint.*'a:0'"),
    ],
)
def test_what_cannot_be(arguments: dict[str, object], names: str) -> None:
    with pytest.raises(ConfigurationError, match=names):
        GroupSize(**arguments)


def test_endpoints() -> None:
    assert GroupSize(nnodes=2, rdzv_endpoint="fl.example.org:29400").endpoint == ("fl.example.org", 29400)
    assert GroupSize(nnodes=2, rdzv_endpoint="[fd00::1]:29400").endpoint == ("fd00::1", 29400)


def test_more_ranks_than_cores_are_worth_a_word() -> None:
    cores = len(os.sched_getaffinity(0))
    assert GroupSize().warning() == ""
    assert f"{cores + 9} ranks for" in GroupSize(nproc_per_node=cores + 9).warning()


@pytest.mark.parametrize(("engine", "group"), [({}, False), ({"engine": "single"}, False), ({"engine": "fsdp"}, True)])
def test_one_rank_needs_a_group_for_the_engines_of_several(engine: dict[str, str], group: bool) -> None:
    assert needs_group(engine) == group


def test_addresses() -> None:
    assert own_address(("127.0.0.2", 9), is_host=True) == "127.0.0.2"
    assert own_address(("127.0.0.2", 9), is_host=False) == "127.0.0.1"
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    assert interface_of("127.0.0.2") == loopback
    assert interface_of("240.0.0.1") is None  # reserved, RFC 1112
    with pytest.raises(ConfigurationError, match=r"--rdzv-endpoint.*nowhere\.invalid"):
        own_address(("nowhere.invalid", 9), is_host=False)
