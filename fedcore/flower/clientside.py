"""Runs a Flower ClientApp for one task, and checks its result.

An unmodified app gets its model in a Message, like under Flower. One that `fedcore.flower.apps.engine_app.local_app`
made gets it tensor by tensor, on whatever engine the owner of the machines chose.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from fedcore.errors import AppError, EncodingError, UsageError
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.own_model_store import ContextStore, FolderStore, OwnModelStore
from fedcore.flower.apps.tensor_app import LocalJob, LocalResult, TensorApp, take_examples, write_state
from fedcore.flower.grid.queries import numbers_of
from fedcore.flower.legacy_replies import LEGACY_EXAMPLES, legacy_metrics
from fedcore.flower.loading import load_object, naming_dtypes
from fedcore.flower.node.config import NodeConfig
from fedcore.flower.node.keys import with_defaults
from fedcore.flower.records import (
    SERVER_NODE,
    arrays_from_state,
    config_from_json,
    load_records,
    merged_values,
    message_from,
    run_id_of,
    save_records,
    state_from_arrays,
)
from fedcore.run.engine_config import EngineConfig
from fedcore.run.plain import bounded_metrics, reply_error, whole_examples
from fedcore.state import Layout, ModelState, OwnModelFolder
from fedcore.wire.base import MetricValue, Scalar
from fedcore.wire.record_file import (
    MemoryRecords,
    RecordLocation,
    StoredArrays,
    StoredValues,
    arrays_state,
    config_values,
    read_records,
)
from fedcore.wire.tasks import MessageHead, Task
from fedcore.wire.uploads import ReplyError

TTL_SECONDS = 12 * 3600.0
EXAMPLES: Final = "num-examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The reply to a message of a plain exchange: an error, or records, of which these numbers are reported.

    memory: the records, if they are in no file.
    seconds: that the local work took, as far as it is known.
    """

    examples: int | None = None
    metrics: Mapping[str, MetricValue] = field(default_factory=dict)
    error: ReplyError | None = None
    memory: MemoryRecords | None = None
    seconds: float = 0.0

    @classmethod
    def of_values(cls, values: Mapping[str, Any], weight_key: str) -> Answer:
        """Of the values of a reply's MetricRecords those that the record of a run has room for."""
        present_key = next((key for key in (weight_key, EXAMPLES, LEGACY_EXAMPLES) if key in values), weight_key)
        rest = {name: value for name, value in values.items() if name != present_key}
        return cls(examples=whole_examples(values.get(present_key)), metrics=bounded_metrics(rest))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalContent:
    """What a message of a plain exchange holds for a `TensorApp`; one for all clients that are sent the same.

    message: the values of its ConfigRecords.
    key: of the ArrayRecord that holds the model.
    """

    message: Mapping[str, Any]
    model: ModelState
    key: str

    @classmethod
    def read(cls, content: Path) -> LocalContent:
        """From a record file; raises AppError for a message without a model, PeerError for what is no record file."""
        records = read_records(content)
        places = [index for index, record in enumerate(records) if isinstance(record, StoredArrays)]
        if len(places) != 1:
            raise AppError(f"the message needs exactly one ArrayRecord, this one has {len(places)}")
        arrays = cast(StoredArrays, records[places[0]])
        message = _merged(config_values(records).values())
        return cls(message=message, model=arrays_state(content, arrays, places[0]), key=arrays.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTask:
    """Such a message to one client."""

    job: LocalJob
    content: LocalContent


@dataclass(slots=True, kw_only=True)
class ClientRunner:
    """A loaded ClientApp that stays warm; its Context lasts as long as the run.

    In a group of ranks every one of them has a runner, and all do the same tasks.

    engine: how the ranks work together, for an app that leaves it to us.
    local_folder: where the client's own model stays; without one, in the Context.
    aggregated_round: the round of the client's last training whose update was in its sum, 0 for none; None if unknown.
    began: a record file with the Context's state that the first run begins with, which another runner has left.
    durable: whether the files that it writes outlive a power failure.
    """

    app: FlowerApp
    client_id: int
    node_config: Mapping[str, Scalar]
    engine: EngineConfig | None = None
    local_folder: Path | None = None
    aggregated_round: int | None = None
    began: Path | None = None
    durable: bool = True
    _client_app: ClientApp = field(init=False)
    _run: str = field(default="", init=False)
    _context: Context | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._client_app = load_object(self.app.folder, self.app.clientapp, ClientApp)
        if self.engine is not None and isinstance(self._client_app, TensorApp):
            self._client_app.check_engine(self.engine)

    @property
    def hands_model_out(self) -> bool:
        """Whether rank 0 alone needs the model that is sent, because the app's engine hands it to the others."""
        return isinstance(self._client_app, TensorApp)

    @property
    def stays_in_process(self) -> bool:
        """Whether the app keeps state of a client outside its Context, so that no other process can continue."""
        return isinstance(self._client_app, TensorApp) and self._client_app.stays_in_process

    def leave(self, state: Path) -> bool:
        """Write the Context's state to a record file, for another runner of this client; False if there is none.

        Raises StorageFull.
        """
        if self._context is None or not (len(self._context.state) or state.exists()):
            return False
        save_records(state, self._context.state, durable=self.durable)
        return True

    @property
    def context(self) -> Context | None:
        """What the app keeps for this client; None before its first task here."""
        return self._context

    def run(self, task: Task, model: ModelState | None) -> LocalResult:
        """Run the ClientApp on one task; raises AppError for wrong records, and what the user's code raises.

        Args:
            model: the global one; of the ranks of an app that `local_app` made, only rank 0 needs it.
        """
        if (app := self.local_app(task)) is not None:
            return self._work(app, task, self.job(task), model)
        context = self._context_of(task)
        with _identity(context, self.client_id), naming_dtypes(self.app.folder):
            reply = self._client_app(self._message(task, model), context)
        if not isinstance(reply, Message):
            raise AppError(f"the ClientApp returned a {type(reply).__name__}, not a Message")
        if reply.has_error():
            raise AppError(f"the ClientApp returned an error: {reply.error.reason}")
        return _read_reply(reply.content, task, model.layout if model else None)

    def answer(self, task: Task, content: Path | LocalContent | None, out: RecordLocation | None) -> Answer:
        """Run the ClientApp on a message of a plain exchange, whose content is a record file, as Flower's runtime does.

        The reply's records go to `out`, unless the reply is an error; a rank without an `out` only helps. Raises
        AppError for what is no reply, PeerError for what is no record file, and what the user's code raises.

        Args:
            content: the file; for an app made by `local_app` it may have been read already.
        """
        if content is None or task.message is None:
            raise AppError("a plain exchange sends every client a message")
        if (app := self.local_app(task)) is not None:
            local = content if isinstance(content, LocalContent) else LocalContent.read(content)
            local_task = self.local_task(task, local)
            return self.reply(local_task, self._work(app, task, local_task.job, local.model), out)
        if isinstance(content, LocalContent):
            raise UsageError("an app that is not ours reads its messages itself")
        context = self._context_of(task)
        with _identity(context, self.client_id), naming_dtypes(self.app.folder):
            reply = self._client_app(self._received_message(task, task.message, content), context)
        if not isinstance(reply, Message):
            raise AppError(f"the ClientApp returned a {type(reply).__name__}, not a Message")
        if reply.has_error():
            return Answer(error=reply_error(reply.error.code, reply.error.reason))
        if out is not None:
            save_records(out, reply.content, durable=self.durable)
        return Answer.of_values(_merged(reply.content.metric_records.values()), task.weight_key)

    def local_app(self, task: Task) -> TensorApp | None:
        """The app, if it takes this task as a `LocalJob`."""
        app = self._client_app
        if task.queries or not isinstance(app, TensorApp):
            return None
        return app if task.message_type in ("train", "evaluate") else None

    def job(self, task: Task) -> LocalJob:
        """What a task asks of a `TensorApp`."""
        message = merged_values(config_from_json(config) for config in task.configs.values())
        return self._job(self._context_of(task), message)

    def local_task(self, task: Task, content: LocalContent) -> LocalTask:
        """What a message of a plain exchange asks of this client."""
        return LocalTask(job=self._job(self._context_of(task), dict(content.message)), content=content)

    def reply(self, local_task: LocalTask, result: LocalResult, out: RecordLocation | None) -> Answer:
        """The reply to such a message, its records in `out`."""
        values = {EXAMPLES: result.examples, **result.metrics}
        stored = StoredValues(key="metrics", kind="metric", values=cast(Any, values))
        result.save_reply(out, stored, local_task.content.key, durable=self.durable)
        return Answer.of_values(values, EXAMPLES)

    def _work(self, app: TensorApp, task: Task, job: LocalJob, model: ModelState | None) -> LocalResult:
        store = self._store(task, self._context_of(task))
        return app.run(job, model, trains=task.trains, store=store, engine_config=self.engine)

    def _job(self, context: Context, message: Mapping[str, Any]) -> LocalJob:
        return LocalJob(
            config=context.run_config,
            node=context.node_config,
            message=message,
            client=self.client_id,
            aggregated_round=self.aggregated_round,
        )

    def _store(self, task: Task, context: Context) -> OwnModelStore:
        if self.local_folder is None:
            return ContextStore(context)
        return FolderStore(store=OwnModelFolder(self.local_folder), run=task.run, app_sha256=task.app_sha256)

    def _context_of(self, task: Task) -> Context:
        if self._context is None or self._run != task.run:
            began, self.began, self._run = self.began, None, task.run
            self._context = Context(
                run_id=run_id_of(task.run),
                node_id=self.client_id,
                node_config=NodeConfig(with_defaults(self.app.node_keys, self.node_config)),
                state=load_records(began) if began is not None else RecordDict(),
                run_config=dict(task.run_config),
            )
        return self._context

    def _message(self, task: Task, model: ModelState | None) -> Message:
        content = RecordDict({key: config_from_json(value) for key, value in task.configs.items()})
        if model is not None:
            content[task.arrays_key] = arrays_from_state(model)
        head = MessageHead(
            message_id=f"{task.run}/{task.exchange}",
            group_id=str(task.server_round),
            created_at=time.time(),
            ttl=TTL_SECONDS,
        )
        return message_from(content, self._metadata(task, head))

    def _received_message(self, task: Task, head: MessageHead, content: Path) -> Message:
        return message_from(load_records(content), self._metadata(task, head))

    def _metadata(self, task: Task, head: MessageHead) -> Metadata:
        return Metadata(
            run_id=run_id_of(task.run),
            message_id=head.message_id,
            src_node_id=SERVER_NODE,
            dst_node_id=self.client_id,
            reply_to_message_id="",
            group_id=head.group_id,
            created_at=head.created_at,
            ttl=head.ttl,
            message_type=task.message_type,
        )


@contextmanager
def _identity(context: Context, node: int) -> Iterator[None]:
    """Be this node while its app runs: in a simulation the process is the server's as well."""
    before = {name: vars(TaskIdentity)[name] for name in ("_run_id", "_node_id", "_task_id")}
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = context.run_id, node, 0
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)


def _merged(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """All values; of a name in two records, the later one's."""
    return {name: value for record in records for name, value in record.items()}


def _read_reply(content: RecordDict, task: Task, layout: Layout | None) -> LocalResult:
    if task.queries:
        query_max = float(cast(float, task.settings.get("query-max", math.inf)))
        return LocalResult(examples=1, metrics=numbers_of(content, query_max))
    legacy = legacy_metrics(content)
    metrics = _only_metrics(content) if legacy is None else legacy
    examples = take_examples(metrics, task.weight_key if legacy is None else LEGACY_EXAMPLES)
    if not task.trains:
        return LocalResult(examples=examples, metrics=metrics)
    state = _only_arrays(content, layout)
    return LocalResult(examples=examples, metrics=metrics, layout=state.layout, write=write_state(state))


def _only_metrics(content: RecordDict) -> dict[str, MetricValue]:
    records: list[MetricRecord] = list(content.metric_records.values())
    if len(records) != 1:
        raise AppError(f"a reply needs exactly one MetricRecord, this one has {len(records)}")
    return cast(dict[str, MetricValue], dict(records[0]))


def _only_arrays(content: RecordDict, layout: Layout | None) -> ModelState:
    records = list(content.array_records.values())
    if len(records) != 1:
        raise AppError(f"a reply to a train message needs exactly one ArrayRecord, this one has {len(records)}")
    state = state_from_arrays(records[0], like=layout)
    if layout is not None:
        try:
            layout.check_same(state.layout, what="the reply's ArrayRecord")
        except EncodingError as error:
            raise AppError(str(error)) from None
    return state
