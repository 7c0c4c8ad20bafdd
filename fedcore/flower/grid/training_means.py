"""The means that a ServerApp got of its trainings, kept to be compared with others.

Of a secure run the first and the last, with all that it takes to ask the same clients the same again; of a plain run
the first, which is computed from the single replies as secure aggregation would: each cast to the dtypes of the model,
weighted by its examples, in float64.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from fedcore.errors import AppError, EncodingError
from fedcore.flower.records import cast_to_layout, config_to_json, round_of, state_from_arrays
from fedcore.run.exchange import ExchangeRequest
from fedcore.run.plain import whole_examples
from fedcore.state import FileSink, Layout, ModelState, TensorSpec
from fedcore.state.files import read_metadata
from fedcore.wire.tasks import is_training

FOLDER: Final = "training-means"
"""Below the folder of a ServerApp whose server tells (`fedcore.flower.apps.progress_protocol`)."""
_BASE, _MEAN = "base/", "mean/"
_FACTS: Final = "training"
_REQUEST: Final = ("message_type", "server_round", "arrays_key", "weight_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMean:
    """The weighted mean of the models that clients made of one.

    request: what they were asked, with the model before.
    mean: of each tensor of it, in its dtype or float64.
    examples: of all clients together.
    largest: for each tensor the mean over the clients, weighted likewise, of the largest change of an element; {} if
        it is not known.
    """

    request: ExchangeRequest
    mean: ModelState
    examples: int
    largest: Mapping[str, float] = field(default_factory=dict)

    @property
    def base(self) -> ModelState:
        """The model before."""
        assert self.request.model is not None  # noqa: S101 - a mean is of changes of one
        return self.request.model

    @classmethod
    def of_states(cls, request: ExchangeRequest, states: Iterable[tuple[ModelState, int]]) -> Self | None:
        """Of the clients' models, each with its examples; None if they have no mean."""
        base, examples = request.model, 0
        if base is None:
            return None
        sums = {spec.name: np.zeros(spec.shape, np.float64) for spec in base.layout.specs}
        largest = dict.fromkeys(sums, 0.0)
        for state, count in states:
            try:
                local = cast_to_layout(state, base.layout)
            except EncodingError:
                return None
            if set(local) != set(sums):
                return None
            examples += count
            for spec in base.layout.specs:
                value = as_float(local, spec)
                sums[spec.name] += count * value
                largest[spec.name] += count * float(np.abs(value - as_float(base, spec)).max(initial=0.0))
        if not examples:
            return None
        for value in sums.values():
            np.divide(value, examples, out=value)  # a large model has one copy in float64
        return cls(
            request=request,
            mean=ModelState.from_arrays(sums),
            examples=examples,
            largest={name: value / examples for name, value in largest.items()},
        )

    def save(self, path: Path) -> None:
        """Write it to a safetensors file; raises StorageFull."""
        arrays = {f"{_BASE}{name}": value for name, value in self.base.items()}
        arrays |= {f"{_MEAN}{name}": value for name, value in self.mean.items()}
        dtypes = {f"{_BASE}{spec.name}": spec.dtype for spec in self.base.layout.specs}
        dtypes |= {f"{_MEAN}{spec.name}": spec.dtype for spec in self.mean.layout.specs}
        facts = {
            **{name: getattr(self.request, name) for name in _REQUEST},
            "nodes": list(self.request.nodes),
            "configs": self.request.configs,
            "examples": self.examples,
            "largest": dict(self.largest),
        }
        state = ModelState.from_arrays(arrays, dtypes=dtypes)
        with FileSink(path, state.layout, {_FACTS: json.dumps(facts)}, durable=False) as sink:
            state.write_to(sink)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote; raises PeerError for another file."""
        facts, state = json.loads(read_metadata(path)[_FACTS]), ModelState.open(path)

        def part(prefix: str) -> ModelState:
            names = {name.removeprefix(prefix): name for name in state if name.startswith(prefix)}
            return state.renamed(names)

        request = ExchangeRequest(
            **{name: facts[name] for name in _REQUEST},
            nodes=tuple(facts["nodes"]),
            configs=facts["configs"],
            model=part(_BASE),
        )
        return cls(request=request, mean=part(_MEAN), examples=facts["examples"], largest=facts["largest"])


@dataclass(frozen=True, slots=True)
class _Replies:
    """What a strategy asked for, and what it got."""

    request: ExchangeRequest
    replies: Sequence[Message]


@dataclass(slots=True)
class MeanRecorder:
    """Takes the replies of trainings as they come.

    secure: whether each reply is a mean. Of a plain run the first training alone is taken: the others are a round of
        single models each.
    """

    secure: bool
    _first: _Replies | None = None
    _last: _Replies | None = None
    _plain: TrainingMean | None = None

    def take(
        self, messages: Sequence[Message], replies: Sequence[Message], weight_key: str, layout: Layout | None
    ) -> None:
        """Take the replies to messages.

        Args:
            layout: that of the run's models, None if it is not known yet.
        """
        if not messages or not is_training(messages[0].metadata.message_type) or not replies:
            return
        if self._first is not None and not self.secure:
            return
        request = _request(messages, weight_key, layout)
        if request is None:
            return
        self._last = exchange = _Replies(request, replies)
        if self._first is None:
            self._first = exchange
            if not self.secure:  # so that the single models need not stay
                self._plain, self._first = _mean(exchange), replace(exchange, replies=())

    @property
    def recorded(self) -> bool:
        """Whether there was a training, which costs nothing to know."""
        return self._first is not None

    @property
    def first(self) -> TrainingMean | None:
        """Of the first training; None if it has no mean."""
        return self._plain if self._first is None or not self.secure else _mean(self._first)

    @property
    def last(self) -> TrainingMean | None:
        """Of the last training of a secure run; None if that is the first."""
        return None if not self.secure or self._last is None or self._last is self._first else _mean(self._last)

    def save(self, folder: Path) -> None:
        """Write the means to `first.safetensors` and, if there is another, `last.safetensors`; raises StorageFull."""
        for name, mean in (("first", self.first), ("last", self.last)):
            if mean is not None:
                folder.mkdir(exist_ok=True)
                mean.save(folder / f"{name}.safetensors")


def as_float(state: ModelState, spec: TensorSpec) -> NDArray[np.float64]:
    """A tensor in float64; of 64-bit integers the nearest that it has."""
    values = state.float32(spec.name).reshape(spec.shape) if spec.dtype == "BF16" else state[spec.name]
    return values.astype(np.float64)


def _request(messages: Sequence[Message], weight_key: str, layout: Layout | None) -> ExchangeRequest | None:
    """What the messages ask for; None if they differ, or hold no model. Taken now: strategies reuse their records."""
    content = messages[0].content
    if any(message.content is not content and message.content != content for message in messages[1:]):
        return None
    try:
        (key,) = content.array_records
        base = cast_to_layout(state_from_arrays(content.array_records[key], like=layout), layout)
    except (AppError, EncodingError, ValueError):
        return None
    return ExchangeRequest(
        message_type=messages[0].metadata.message_type,
        nodes=tuple(sorted(message.metadata.dst_node_id for message in messages)),
        server_round=round_of(messages[0]) or 1,
        model=base,
        arrays_key=key,
        configs={name: config_to_json(record) for name, record in content.config_records.items()},
        weight_key=weight_key,
    )


def _mean(exchange: _Replies) -> TrainingMean | None:
    """The mean of replies; None if they hold no models of one layout."""
    request, base = exchange.request, exchange.request.model
    assert base is not None  # noqa: S101 - see _request
    try:
        states = [_model_of(reply, request.weight_key, base) for reply in exchange.replies if not reply.has_error()]
    except (AppError, ValueError):
        return None
    return TrainingMean.of_states(request, states)


def _model_of(reply: Message, weight_key: str, base: ModelState) -> tuple[ModelState, int]:
    """The model and the examples of a reply; raises ValueError if it has no single one of both."""
    (record,) = reply.content.array_records.values()
    values: dict[str, Any] = {
        name: v for metrics in reply.content.metric_records.values() for name, v in metrics.items()
    }
    examples = whole_examples(values.get(weight_key))
    if examples is None:
        raise ValueError(weight_key)
    return state_from_arrays(record, like=base.layout), examples
