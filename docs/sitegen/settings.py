"""The reference of settings, from the dataclasses that hold them and the files that `provision` writes."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from fedcore.federation import Policy
from fedcore.federation.kits.kit_text import client_text, operator_text, server_text
from fedcore.federation.kits.policy_text import policy_text
from fedcore.run.engine_config import EngineConfig
from fedcore.run.settings import JobSettings
from sitegen.tables import code, default, explained, table, type_name


def of_a_run() -> str:
    """`[tool.fedcore]` and `--set`."""
    return _fields(JobSettings)


def of_an_engine() -> str:
    """`--engine-set`."""
    return _fields(EngineConfig)


def of_kits() -> str:
    """Each file as it is first written, whose comments say what each line is for."""
    url = "https://fl.example.org:8443"
    files = {
        "server.toml": server_text("pilot", bind="0.0.0.0", port=8443, min_cohort=3, approve_apps="listed"),  # noqa: S104
        "client.toml": client_text("pilot", 1, "client-1", url, {"partition-id": 0, "num-partitions": 4}),
        "operator.toml": operator_text("pilot", url),
        "policy.toml": policy_text(Policy.default(4)),
    }
    return "\n".join(f"## {name}\n\n```toml\n{text}```\n" for name, text in files.items())


def _fields(kind: Any) -> str:
    hints, said = typing.get_type_hints(kind), explained(kind)
    rows = [
        (code(_kebab(found.name)), type_name(hints[found.name]), _shown(default(found)), said.get(found.name, ""))
        for found in dataclasses.fields(kind)
    ]
    return table(("key", "type", "default", "meaning"), rows)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return code(list(value))
    return code(str(value).lower() if isinstance(value, bool) else value)


def _kebab(name: str) -> str:
    return name.replace("_", "-")
