"""How a stage of an exchange was closed, as it is written down before anybody is told what follows from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter

from fedcore.errors import ConfigurationError
from fedcore.secagg import Fault
from fedcore.system.plain_json import from_plain, to_plain
from fedcore.wire.control import WithdrawIn
from server_app.exchanges.context import ExchangeUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Why a client was given up, and what it said where it left by itself."""

    reason: str
    withdrawal: WithdrawIn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """Whose answers count, whom the exchange has given up since the closing before, and who had cheated by then.

    Answers are named, and not to be taken from the receipts: one may have come to the disk although its writing was
    reported as failed, and then nobody has counted it.
    """

    answered: tuple[int, ...]
    gone: dict[int, Parting] = field(default_factory=dict)
    blamed: dict[int, Fault] = field(default_factory=dict)
    usage: ExchangeUsage = field(default_factory=ExchangeUsage)

    def to_json(self) -> dict[str, Any]:
        """As an object for a column of the database."""
        plain: dict[str, Any] = json.loads(json.dumps(to_plain(_CLOSING, self)))
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Closing:
        """The inverse of `to_json`; ConfigurationError where a database holds something else."""
        return from_plain(_CLOSING, dict(data), what="the kept closing of a stage", error=ConfigurationError)


_CLOSING: Final = TypeAdapter(Closing)
