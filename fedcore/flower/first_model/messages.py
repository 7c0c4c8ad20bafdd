"""What a process that derives a first model hears, and what it says: one JSON object a line."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter

from fedcore.flower.start import ServerAppStart
from fedcore.wire.base import ClientId, Message, Sha256

QUERIES_ALONE: Final = "queries_alone"
"""The attribute of a ServerApp that sends models in queries alone, whose model no client traces."""


class FirstModelStart(ServerAppStart):
    """To the process: which ServerApp is to begin.

    app_sha256
        The hash of the app that has to lie there.
    nodes
        Ids of the clients that the ServerApp finds connected.
    statistics
        Those of the clients' columns that the federation's messages name; the ServerApp asks nobody for them.
    file
        Where the model is to be written, in a folder that is made for it alone; "" for nowhere.
    """

    op: Literal["start"] = "start"
    app_sha256: Sha256
    nodes: list[ClientId]
    statistics: dict[str, Any] = Field(default_factory=dict)
    file: str = ""


class FirstModel(Message):
    """From the process: the model, as the SHA-256 of its file."""

    op: Literal["derived"] = "derived"
    sha256: Sha256


class NotDerived(Message):
    """From the process: there is none, and why.

    needless
        Whether no client will ask for one.
    """

    op: Literal["not-derived"] = "not-derived"
    reason: str
    needless: bool = False


Derivation = FirstModel | NotDerived

FROM_PROCESS: TypeAdapter[Derivation] = TypeAdapter(Annotated[Derivation, Field(discriminator="op")])
TO_PROCESS: TypeAdapter[FirstModelStart] = TypeAdapter(FirstModelStart)
