"""The node config of an app: entries of the owner, and in a simulation which of how many clients the node is.

Nothing is there that nobody wrote. `partition-id` and `num-partitions` are for apps that divide one data set, which is
a matter of simulations, of kits that `fedcore provision` makes and of trying things out: a site that joined with a key
of its own has its own data, and names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NoReturn

from fedcore.errors import DataError
from fedcore.flower.node.keys import NodeKeys, with_defaults
from fedcore.wire.base import Scalar

PARTITION = "partition-id"
PARTITIONS = "num-partitions"


class MissingNodeValue(DataError, KeyError):
    """An app asked for something of its node that the node's config does not have.

    key: what it asked for.
    """

    def __init__(self, key: str) -> None:
        super().__init__(_what_to_write(key))
        self.key = key

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would put it in quotes


class NodeConfig(dict[str, Scalar]):
    """A node's config; asked for what it does not have, it says what to write into it."""

    def __missing__(self, key: str) -> NoReturn:
        raise MissingNodeValue(key)


def share_of_client(client: int, clients: int, keys: NodeKeys = MappingProxyType({})) -> NodeConfig:
    """The node config of one client of a simulation.

    Args:
        client: counted from 1.
        keys: what the app asks for, whose defaults are in it too.
    """
    return NodeConfig(with_defaults(keys, {PARTITION: client - 1, PARTITIONS: clients}))


def number_of_node(node: Mapping[str, Scalar], client: int) -> int:
    """A number that tells a node from the others, from 0: its partition, and if it has none, by its client's id.

    Both are the same if the partitions were dealt in the order of the ids, as `provision` and simulations do.
    """
    return int(node.get(PARTITION, client - 1))


def _what_to_write(key: str) -> str:
    if key in (PARTITION, PARTITIONS):
        return (
            f"the app asks for {key!r}, its share of one data set, and this site's node config names none. A site with "
            "data of its own names those, as the app's README says; to try an app that divides one data set, give each "
            f"site another share: --node-config '{PARTITION}=0 {PARTITIONS}=3', or under [node-config] in client.toml"
        )
    return (
        f"the app asks for {key!r}, and this site's node config has no such key: say it with --node-config "
        f"'{key}=...', or under [node-config] in client.toml"
    )
