"""ClientApps that exchange models with fedcore tensor by tensor, past Flower's records: a task, and its result.

Without torch: not every app needs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import UserConfig
from flwr.clientapp import ClientApp

from fedcore.errors import AppError
from fedcore.flower.apps.own_model_store import OwnModelStore
from fedcore.run.engine_config import EngineConfig
from fedcore.state import FileSink, Layout, MemorySink, ModelState, StateSink
from fedcore.wire.base import MetricValue
from fedcore.wire.record_file import RecordLocation, StoredValues, write_records, write_result

if TYPE_CHECKING:
    from fedcore.training.engines import LocalRule

Write = Callable[[StateSink | None], None]
"""Writes the new model tensor by tensor. Every rank of a client calls it, all but rank 0 with None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalResult:
    """The examples, the metrics without them, and the new model: its layout (None unless it trained) and its writer.

    The model is what the next task will overwrite, so it has to be written before that.

    file: a safetensors file that holds it already, and now belongs to the owner of the result.
    seconds: that the local work took, as far as it is known.
    """

    examples: int
    metrics: Mapping[str, MetricValue]
    layout: Layout | None = None
    write: Write | None = None
    file: Path | None = None
    seconds: float = 0.0

    @classmethod
    def in_file(cls, examples: int, metrics: Mapping[str, MetricValue], file: Path) -> LocalResult:
        """With a model that lies in a file, mapped; raises PeerError for what is no intact one."""
        state = ModelState.open(file)
        return cls(examples=examples, metrics=metrics, layout=state.layout, write=write_state(state), file=file)

    @property
    def trained(self) -> bool:
        return self.layout is not None

    def state(self) -> ModelState | None:
        """The new model in memory; one that lies in a file is mapped."""
        if self.layout is None or self.write is None:
            return None
        if self.file is not None:
            return ModelState.open(self.file)
        sink = MemorySink(self.layout)
        self.write(sink)
        return sink.state()

    def save(self, path: Path | None, *, durable: bool = True) -> None:
        """Write the new model to a safetensors file; a rank without a path only helps. Raises StorageFull."""
        if self.layout is None or self.write is None:
            return
        if path is None:
            self.write(None)
            return
        with FileSink(path, self.layout, durable=durable) as sink:
            self.write(sink)

    def save_reply(
        self, location: RecordLocation | None, values: StoredValues, key: str, *, durable: bool = True
    ) -> None:
        """Write a record file of `values` and the new model, if there is one, as ArrayRecord `key`; as `save`."""
        if location is None:
            self.save(None)
        elif self.layout is None or self.write is None:
            write_records(location, (values,), durable=durable)
        else:
            write_result(location, values, key, self.layout, self.write, durable=durable)


def write_state(state: ModelState) -> Write:
    """The writer of a state that is in memory already."""

    def write(sink: StateSink | None) -> None:
        if sink is not None:
            state.write_to(sink)

    return write


def take_examples(metrics: dict[str, MetricValue], key: str) -> int:
    """Take the number of examples out of the metrics; raises AppError if there is none."""
    examples = metrics.pop(key, None)
    if examples is None:
        raise AppError(f"the reply's metrics have no {key!r}, the number of examples")
    if isinstance(examples, list) or examples != int(examples) or examples < 0:
        raise AppError(f"{key!r} must be a whole number of examples, not {examples!r}")
    return int(examples)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """What one task asks of this client.

    config: the app's run config.
    node: this node's own.
    message: the values that the strategy sent along.
    client: the node's id.
    rule: what the strategy, or Ditto, changes in the steps of this training; for `train`.
    aggregated_round: the round of the client's last training whose update was in its sum, 0 for none; None if unknown.
    """

    config: UserConfig
    node: UserConfig
    message: Mapping[str, Any]
    client: int
    rule: LocalRule | None = None
    aggregated_round: int | None = None

    @property
    def server_round(self) -> int:
        """The round, from 1 on."""
        return int(self.message.get("server-round", 0))


class TensorApp(ClientApp, ABC):
    """A Flower ClientApp that fedcore calls by `run`, on every rank of a client."""

    @property
    def stays_in_process(self) -> bool:
        """Whether something of a client is kept in addition to what `store` holds, in this process alone."""
        return False

    @abstractmethod
    def run(
        self,
        job: LocalJob,
        model: ModelState | None,
        *,
        trains: bool,
        store: OwnModelStore,
        engine_config: EngineConfig | None = None,
    ) -> LocalResult:
        """Do one task; `model` is the global one, which ranks other than 0 need not have."""

    @abstractmethod
    def check_engine(self, config: EngineConfig) -> None:
        """Before any task: raise ConfigurationError for an engine that cannot do what the app asks for."""
