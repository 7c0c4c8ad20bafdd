"""ClientApps that take their model past Flower's records, tensor by tensor. Without torch: not every app needs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flwr.app import UserConfig
from flwr.clientapp import ClientApp

from fedcore.config import EngineConfig
from fedcore.flower.own_models import Store
from fedcore.flower.result import LocalResult
from fedcore.state import ModelState

if TYPE_CHECKING:
    from fedcore.training.engines import Proximal


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """What one task asks of this client.

    config: the app's run config. node: this node's own. message: the values that the strategy sent along. client: the
    node's id. proximal: where the steps of this training are to be pulled to, by FedProx or Ditto; for `train`.
    """

    config: UserConfig
    node: UserConfig
    message: Mapping[str, Any]
    client: int
    proximal: Proximal | None = None

    @property
    def server_round(self) -> int:
        """The round, from 1 on."""
        return int(self.message.get("server-round", 0))


class DirectApp(ClientApp, ABC):
    """A Flower ClientApp that fedcore calls by `run`, on every rank of a client."""

    @abstractmethod
    def run(
        self,
        job: LocalJob,
        model: ModelState | None,
        *,
        trains: bool,
        store: Store,
        engine_config: EngineConfig | None = None,
    ) -> LocalResult:
        """Do one task; `model` is the global one, which ranks other than 0 need not have."""
