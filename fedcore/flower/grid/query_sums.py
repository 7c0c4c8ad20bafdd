"""Lets a query's own loop take a sum if the function that reads the replies only adds them up.

Flower's examples of queries send messages in `main`, and hand the replies to a function that adds numbers up. In secure
mode such a loop gets as many replies as it asked clients: the first holds the sum, the others zeros. Who only adds, or
averages, cannot tell the difference. Whether a function does is tried on made-up replies, like those of metrics
(`weighted_means`): of a few replies it has to give what it gives of their sum and zeros. Replies are read by functions
that passed alone; the loop itself, and any other code, is refused when it looks into one.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import logging
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, TypeAlias

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict

from fedcore.errors import AppError
from fedcore.flower.grid.aggregation_guard import callers, of_flower
from fedcore.flower.grid.weighted_means import REPLIES, only_computes, plain
from fedcore.flower.records import message_from

_CONTENT: Final = "content"
Numbers: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Of the MetricRecords of a reply, by their keys."""


def may_only_add(frames: Sequence[FrameType]) -> bool:
    """Whether the app's code on the stack names a function that reads replies and only computes."""
    return any(
        isinstance(value := frame.f_globals.get(name), FunctionType) and _reads(value.__code__) and only_computes(value)
        for frame in frames
        if not of_flower(frame.f_code)
        for name in _names(frame.f_code)
    )


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _reads(code: CodeType) -> bool:
    return _CONTENT in set(_names(code))


@dataclass(slots=True)
class SumReader:
    """Who may read the replies to one query, all of which together are its sum.

    refusal
        What code hears that may not.
    """

    refusal: AppError
    messages: list[Message] = field(default_factory=list, init=False)
    _accepted: dict[int, CodeType] = field(default_factory=dict, init=False)

    def replies(self, total: Message, messages: Sequence[Message]) -> list[Message]:
        """The reply with the sum as the first of as many as clients were asked; the others hold zeros."""
        nothing = RecordDict(
            {
                key: MetricRecord({name: _like(value, 0.0) for name, value in record.items()})
                for key, record in total.content.metric_records.items()
            }
        )
        for message in messages:
            content = total.content if message is messages[0] else nothing
            metadata = total.metadata.__class__(**_fields(total, message))
            self.messages.append(_GuardedReply.of(message_from(content, metadata), self))
        return list(self.messages)

    def check(self) -> None:
        """Refuse code that reads a reply and does not only add; raises the refusal."""
        frames = list(callers())
        if str(frames[0].f_globals.get("__name__")).startswith("fedcore."):
            return  # the grid itself, which notes figures
        if any(id(frame.f_code) in self._accepted for frame in frames):
            return
        for frame in frames:
            if of_flower(frame.f_code) or frame.f_code.co_name.startswith("<"):
                continue
            call = self._argument(frame)
            if call is not None:
                function, name, arguments = call
                if self._adds(function, name, arguments):
                    self._accepted[id(frame.f_code)] = frame.f_code
                    return
                break
        raise self.refusal

    def _argument(self, frame: FrameType) -> tuple[FunctionType, str, dict[str, Any]] | None:
        """The function of a frame that has the replies as an argument, its name, and all arguments."""
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        arguments = {name: frame.f_locals[name] for name in names if name in frame.f_locals}
        replies = next((name for name, value in arguments.items() if self._are_replies(value)), None)
        function = _function_of(frame)
        if replies is None or function is None or len(arguments) < len(names):
            return None
        return function, replies, arguments

    def _are_replies(self, value: object) -> bool:
        if not isinstance(value, list | tuple) or len(value) != len(self.messages):
            return False
        return all(one is other for one, other in zip(value, self.messages, strict=True))

    def _adds(self, function: FunctionType, name: str, arguments: Mapping[str, Any]) -> bool:
        if not only_computes(function):
            return False
        draw = np.random.default_rng(0)
        shapes: Numbers = {key: dict(record) for key, record in self._open(0).metric_records.items()}
        try:
            trial = _without_assertions(function)
            with _silent():
                return all(
                    self._same(trial, name, arguments, shapes, count, draw) for count in REPLIES for _ in range(3)
                )
        except Exception:  # it may fail on made-up replies in any way
            return False

    def _same(
        self,
        function: Callable[..., Any],
        name: str,
        arguments: Mapping[str, Any],
        shapes: Numbers,
        count: int,
        draw: np.random.Generator,
    ) -> bool:
        made = [_mapped(shapes, lambda value: _drawn(value, draw)) for _ in range(count)]
        total = {
            key: {one: plain(sum(np.asarray(reply[key][one]) for reply in made)) for one in record}
            for key, record in shapes.items()
        }
        nothing = _mapped(shapes, lambda value: _like(value, 0.0))
        of_all = function(**{**arguments, name: self._made_up(made)})
        of_sum = function(**{**arguments, name: self._made_up([total, *[nothing] * (count - 1)])})
        return of_all is not None and _alike(of_all, of_sum)

    def _made_up(self, replies: Sequence[Numbers]) -> list[Message]:
        metadata = self.messages[0].metadata
        return [
            message_from(RecordDict({key: MetricRecord(dict(record)) for key, record in one.items()}), metadata)
            for one in replies
        ]

    def _open(self, index: int) -> RecordDict:
        message = self.messages[index]
        assert isinstance(message, _GuardedReply)  # noqa: S101 - as `replies` made them
        return message.unguarded


class _GuardedReply(Message):
    """A reply whose content is read by functions that add up alone."""

    reader: SumReader

    @classmethod
    def of(cls, message: Message, reader: SumReader) -> Message:
        """The message, guarded."""
        message.__class__ = cls
        guarded: Any = message
        guarded.reader = reader
        return message

    @property
    def unguarded(self) -> RecordDict:
        """The content, for the reader itself."""
        return super().content

    @property
    def content(self) -> RecordDict:
        """The records; raises AppError for code that does not only add them up."""
        self.reader.check()
        return super().content

    @content.setter
    def content(self, value: RecordDict) -> None:
        raise self.reader.refusal


def _function_of(frame: FrameType) -> FunctionType | None:
    """The function that runs in a frame, as its module or its caller names it."""
    code, caller = frame.f_code, frame.f_back
    places = [frame.f_globals, *([caller.f_locals, caller.f_globals] if caller is not None else [])]
    values = [scope[code.co_name] for scope in places if code.co_name in scope]
    return next((one for one in values if isinstance(one, FunctionType) and one.__code__ is code), None)


def _fields(total: Message, message: Message) -> dict[str, Any]:
    metadata = total.metadata
    return {
        "run_id": metadata.run_id,
        "message_id": f"{metadata.message_id}-{message.metadata.dst_node_id}",
        "src_node_id": message.metadata.dst_node_id,
        "dst_node_id": metadata.dst_node_id,
        "reply_to_message_id": message.metadata.message_id,
        "group_id": message.metadata.group_id,
        "created_at": metadata.created_at,
        "ttl": metadata.ttl,
        "message_type": metadata.message_type,
    }


def _without_assertions(function: FunctionType) -> Callable[..., Any]:
    """The function without its assert statements, which made-up numbers need not fulfil; itself if it has no source."""
    if function.__closure__:
        return function
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return function
    module = compile(tree, function.__code__.co_filename, "exec", optimize=1)
    codes = [one for one in module.co_consts if isinstance(one, CodeType) and one.co_name == function.__name__]
    if len(codes) != 1 or codes[0].co_freevars:
        return function
    stripped = FunctionType(codes[0], function.__globals__, function.__name__, function.__defaults__)
    stripped.__kwdefaults__ = function.__kwdefaults__
    return stripped


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without log lines about made-up replies."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _mapped(numbers: Numbers, change: Callable[[Any], Any]) -> Numbers:
    return {key: {name: change(value) for name, value in record.items()} for key, record in numbers.items()}


def _like(value: Any, number: float) -> Any:
    return [number] * len(value) if isinstance(value, list) else number


def _drawn(value: Any, draw: np.random.Generator) -> Any:
    """Another value of the same shape, mostly a count."""
    if isinstance(value, list):
        return [_drawn(0.0, draw) for _ in value]
    return float(draw.integers(1, 100)) if draw.random() < 0.8 else float(draw.normal(0.0, 100.0))


def _alike(one: Any, other: Any) -> bool:
    """Whether two results hold the same, numbers up to rounding."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, str) or isinstance(other, str) or one is None or other is None:
        return bool(one == other)
    return np.shape(one) == np.shape(other) and bool(np.allclose(one, other, rtol=1e-5, atol=1e-9, equal_nan=True))
