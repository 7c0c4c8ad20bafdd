"""An app sees of its node what the site's owner wrote, and reads what to write where something is missing."""

from __future__ import annotations

import pickle
import traceback

import pytest

from fedcore.errors import DataError
from fedcore.flower.node.config import MissingNodeValue, NodeConfig, number_of_node, share_of_client


@pytest.mark.parametrize(
    ("key", "written"), [("partition-id", "partition-id=0 num-partitions=3"), ("images", "--node-config 'images=...'")]
)
def test_what_is_missing_is_named_with_what_to_write(key: str, written: str) -> None:
    with pytest.raises(MissingNodeValue) as caught:
        NodeConfig({"csv": "rows.csv"})[key]
    assert caught.value.key == key
    assert written in traceback.format_exception_only(caught.value)[-1], "in the line that an owner's log shows"
    assert isinstance(caught.value, DataError)
    assert isinstance(caught.value, KeyError), "apps may catch what a dict raises"


def test_it_is_a_dict_in_all_else() -> None:
    node = NodeConfig({"csv": "rows.csv"})
    assert (node["csv"], node.get("images"), "images" in node, {**node}) == (
        "rows.csv",
        None,
        False,
        {"csv": "rows.csv"},
    )
    with pytest.raises(MissingNodeValue):
        pickle.loads(pickle.dumps(node))["images"]


def test_a_node_without_a_partition_has_the_number_of_its_id() -> None:
    """So that a site of its own orders its examples as the same client of a simulation does."""
    assert [number_of_node(share_of_client(client, 3), client) for client in (1, 2, 3)] == [0, 1, 2]
    assert [number_of_node(NodeConfig(), client) for client in (1, 2, 3)] == [0, 1, 2]
    assert number_of_node(NodeConfig({"partition-id": 7}), 1) == 7
