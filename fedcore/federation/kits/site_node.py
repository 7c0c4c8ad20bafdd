"""The node config of a site: what its kit has under `[node-config]`, and over it what a command says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcore.errors import ConfigurationError
from fedcore.federation.kits.kits import ClientKit
from fedcore.flower.node.keys import NodeKeys, absolute_paths
from fedcore.system.assignments import parse_assignments
from fedcore.wire.base import Scalar


def site_values(keys: NodeKeys, kit: ClientKit | None, node_config: str) -> dict[str, Scalar]:
    """The node config, with absolute paths; raises ConfigurationError for a `--node-config` that cannot be read.

    Whether it has all that the app asks for is for `checked_node` to say.

    Args:
        keys: what the app asks for.
        kit: the site's, whose paths are relative to its folder; None for none.
        node_config: `--node-config`, whose paths are relative to the current folder.
    """
    own = absolute_paths(keys, kit.node_config, kit.folder) if kit is not None else {}
    option = scalars(parse_assignments([node_config] if node_config else []), "--node-config")
    return {**own, **absolute_paths(keys, option, Path.cwd())}


def scalars(values: Mapping[str, Any], where: str) -> dict[str, Scalar]:
    """The values, each a number, a string, true or false; raises ConfigurationError for any other."""
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str):
            raise ConfigurationError(f"{where}: {key} must be a number, a string, true or false")
    return dict(values)
