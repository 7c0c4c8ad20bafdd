"""What the adversary asks of its clients: a list of exchanges, each any task that the wire can carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedcore.codec import AnyEncoding, Encoding
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.exchange import ExchangeRequest, make_task, make_work
from fedcore.run.settings import JobSettings
from fedcore.state import FileSink, ModelState, sha256_file
from fedcore.wire.tasks import Buffer, ModelRef, Task, Version, is_query, is_training
from support.worlds.data import make_model

APP = "ab" * 32
EVERYBODY = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One exchange. Where a field is empty, it is what an honest server would say.

    model: arguments of `make_model`. state: a model in its place. own: client -> a model for it alone, under a task
    that names that one. metadata: what the model's file says beside its tensors. starts: of a buffered exchange,
    client -> number and model of the version that it trained from. settings: of the run, in kebab case. codec: fields
    of CodecSettings, encoding: of Encoding, task: of Task, replaced at last. drops: client -> the stage in which the
    adversary says that it was lost.
    """

    run: str = "run-1"
    message_type: str = "train"
    model: Mapping[str, float] = field(default_factory=dict)
    state: ModelState | None = None
    own: Mapping[int, ModelState] = field(default_factory=dict)
    starts: Mapping[int, tuple[int, ModelState]] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    run_config: Mapping[str, Any] = field(default_factory=lambda: {"lr": 1.0})
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    codec: Mapping[str, Any] = field(default_factory=dict)
    encoding: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    cohort: Sequence[int] = EVERYBODY
    drops: Mapping[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Desk:
    """Makes the tasks. folder: where the models lie. members: of the roster."""

    folder: Path
    members: int
    _numbers: dict[str, int] = field(default_factory=dict)
    _models: dict[str, Path] = field(default_factory=dict)

    def task(self, ask: Ask) -> Task:
        """The next exchange of its run."""
        number = self._numbers[ask.run] = self._numbers.get(ask.run, 0) + 1
        settings = JobSettings.from_mapping(ask.settings)
        path = self._model(ask.state or make_model(**ask.model), ask.metadata)
        state = ModelState.open(path)
        task = make_task(
            _request(ask, state, settings),
            settings=settings,
            run=ask.run,
            exchange=number,
            attempt=1,
            cohort=ask.cohort,
            app_sha256=APP,
            run_config=dict(ask.run_config),
            model=_reference(path),
            encoding=self._encoding(ask, settings, state),
            least_cohort=3,
            members=self.members,
            buffer=self._buffer(ask),
        )
        return task.model_copy(update=dict(ask.task))

    def tasks(self, ask: Ask, task: Task) -> dict[int, Task]:
        """What each client of the cohort is told: `task`, or the same about a model of its own."""
        own = {client: _reference(self._model(state)) for client, state in ask.own.items()}
        return {
            client: task.model_copy(update={"model": own[client]}) if client in own else task for client in task.cohort
        }

    def work(self, ask: Ask, number: int, state: ModelState) -> Task:
        """Work for a later sum of the ask's run, from a model that gets this number."""
        settings = JobSettings.from_mapping(ask.settings)
        reference = _reference(self._model(state))
        return make_work(
            _request(ask, state, settings),
            settings=settings,
            run=ask.run,
            exchange=self._numbers.get(ask.run, 0) + 1,
            app_sha256=APP,
            run_config=dict(ask.run_config),
            model=reference,
            version=Version(number=number, sha256=reference.sha256),
        )

    def model_of(self, task: Task) -> Path:
        """The file that a task names."""
        assert task.model is not None
        return self._models[task.model.sha256]

    def _buffer(self, ask: Ask) -> Buffer | None:
        if not ask.starts:
            return None
        starts = [
            Version(number=number, sha256=_reference(self._model(state)).sha256)
            for number, state in (ask.starts[client] for client in sorted(ask.cohort))
        ]
        return Buffer(newest=max(start.number for start in starts), starts=starts)

    def _model(self, state: ModelState, metadata: Mapping[str, str] = MappingProxyType({})) -> Path:
        path = self.folder / f"model-{len(self._models)}.safetensors"
        with FileSink(path, state.layout, metadata) as sink:
            state.write_to(sink)
        return self._models.setdefault(sha256_file(path), path)

    def _encoding(self, ask: Ask, settings: JobSettings, state: ModelState) -> AnyEncoding:
        layout = state.layout if is_training(ask.message_type) else None
        if settings.private and is_query(ask.message_type):
            # An honest server asks none in a private run; this one asks for a sum without noise.
            settings = replace(settings, dp_epsilon=0.0, dp_noise_multiplier=0.0)
        encoding = EncodingPlan(settings, least_cohort=3).encoding(
            ask.message_type, layout, len(ask.cohort), self.members
        )
        if ask.codec:
            encoding = replace(encoding, settings=replace(encoding.settings, **ask.codec))
        if ask.encoding and isinstance(encoding, Encoding) and layout is not None:
            encoding = replace(encoding, **ask.encoding)
        return encoding


def _request(ask: Ask, state: ModelState, settings: JobSettings) -> ExchangeRequest:
    return ExchangeRequest(
        message_type=ask.message_type,
        nodes=tuple(ask.cohort),
        server_round=1,  # the same in all of them, lest they ask for different things
        model=state,
        arrays_key="arrays",
        configs=ask.configs,
        weight_key=settings.weight_key,
    )


def _reference(path: Path) -> ModelRef:
    return ModelRef(sha256=sha256_file(path), size=path.stat().st_size)
