"""Running a Flower ClientApp for one task, and checking what it returns.

An unmodified app gets its model in a Message, like under Flower. One that `fedcore.flower.engine_app.local_app` made
gets it tensor by tensor, on whatever engine the owner of the machines chose.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from fedcore.config import EngineConfig
from fedcore.errors import AppError, EncodingError
from fedcore.flower.app import FlowerApp
from fedcore.flower.loading import load_object
from fedcore.flower.own_models import ContextStore, FolderStore, OwnModelStore
from fedcore.flower.queries import numbers_of
from fedcore.flower.records import (
    arrays_from_state,
    config_from_json,
    merged_values,
    message_from,
    run_id_of,
    state_from_arrays,
)
from fedcore.flower.tensor_app import LocalJob, LocalResult, TensorApp, take_examples, write_state
from fedcore.state import Layout, ModelState, OwnModelFolder
from fedcore.wire import MetricValue, Scalar, Task

TTL_SECONDS = 12 * 3600.0


@dataclass(slots=True, kw_only=True)
class ClientRunner:
    """A loaded ClientApp that stays warm; its Context lasts as long as the run.

    In a group of ranks every one of them has a runner, and all do the same tasks. engine: how the ranks work together,
    for an app that leaves it to us. local_folder: where the client's own model stays; without one, in the Context.
    """

    app: FlowerApp
    client_id: int
    node_config: Mapping[str, Scalar]
    engine: EngineConfig | None = None
    local_folder: Path | None = None
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

    def run(self, task: Task, model: ModelState | None) -> LocalResult:
        """Run the ClientApp on one task; raises AppError for wrong records, and what the user's code raises.

        model: the global one; of the ranks of an app that `local_app` made, only rank 0 needs it.
        """
        context = self._context_of(task)
        if isinstance(self._client_app, TensorApp) and not task.queries:
            return self._run_local(self._client_app, task, model, context)
        message = self._message(task, model)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = (
            context.run_id,
            self.client_id,
            0,
        )
        reply = self._client_app(message, context)
        if not isinstance(reply, Message):
            raise AppError(f"the ClientApp returned a {type(reply).__name__}, not a Message")
        if reply.has_error():
            raise AppError(f"the ClientApp returned an error: {reply.error.reason}")
        return _read_reply(reply.content, task, model.layout if model else None)

    def _run_local(self, app: TensorApp, task: Task, model: ModelState | None, context: Context) -> LocalResult:
        message = merged_values(config_from_json(config) for config in task.configs.values())
        job = LocalJob(config=context.run_config, node=context.node_config, message=message, client=self.client_id)
        return app.run(job, model, trains=task.trains, store=self._store(task, context), engine_config=self.engine)

    def _store(self, task: Task, context: Context) -> OwnModelStore:
        if self.local_folder is None:
            return ContextStore(context)
        return FolderStore(store=OwnModelFolder(self.local_folder), run=task.run, app_sha256=task.app_sha256)

    def _context_of(self, task: Task) -> Context:
        if self._context is None or self._run != task.run:
            self._run = task.run
            self._context = Context(
                run_id=run_id_of(task.run),
                node_id=self.client_id,
                node_config=dict(self.node_config),
                state=RecordDict(),
                run_config=dict(task.run_config),
            )
        return self._context

    def _message(self, task: Task, model: ModelState | None) -> Message:
        content = RecordDict({key: config_from_json(value) for key, value in task.configs.items()})
        if model is not None:
            content[task.arrays_key] = arrays_from_state(model)
        metadata = Metadata(
            run_id=run_id_of(task.run),
            message_id=f"{task.run}/{task.exchange}",
            src_node_id=0,
            dst_node_id=self.client_id,
            reply_to_message_id="",
            group_id=str(task.server_round),
            created_at=time.time(),
            ttl=TTL_SECONDS,
            message_type=task.message_type,
        )
        return message_from(content, metadata)


def _read_reply(content: RecordDict, task: Task, layout: Layout | None) -> LocalResult:
    if task.queries:
        query_max = float(cast(float, task.settings.get("query-max", math.inf)))
        return LocalResult(examples=1, metrics=numbers_of(content, query_max))
    metrics = _only_metrics(content)
    examples = take_examples(metrics, task.weight_key)
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
