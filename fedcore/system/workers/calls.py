"""Calls in another process: the annotations of a method or function say what the message may hold."""

from __future__ import annotations

import importlib
import inspect
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, Union, get_args, get_type_hints

from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter, create_model

from fedcore.system.workers.failures import RaisedError, WorkerMessage

Target = TypeVar("Target")


class Calls(Generic[Target]):
    """The messages that call the public methods of a class, with arguments by name, and those that answer.

    Both sides make them from the same class, and each accepts nothing else. Types are checked where a message arrives.
    """

    def __init__(self, target: type[Target]) -> None:
        hints = {
            name: get_type_hints(method, include_extras=True)
            for name, method in vars(target).items()
            if callable(method) and not name.startswith("_")
        }
        self._orders = {
            name: _message(name, {key: hint for key, hint in types.items() if key != "return"})
            for name, types in hints.items()
        }
        self._answers = {name: _message(name, {"value": types["return"]}) for name, types in hints.items()}
        self.orders: Final = _one_of(*self._orders.values())
        self.answers: Final = _one_of(*self._answers.values(), RaisedError)

    def order(self, method: Callable[..., Any], **arguments: object) -> WorkerMessage:
        """The message that calls a method."""
        kind: Any = self._orders[method.__name__]
        message: WorkerMessage = kind.model_construct(**arguments)
        return message

    def execute(self, target: Target, order: Any) -> WorkerMessage:
        """Call the method that the order names; the answer holds what it returned, or raised."""
        arguments = {key: getattr(order, key) for key in type(order).model_fields if key != "kind"}
        try:
            value = getattr(target, order.kind)(**arguments)
        except Exception as error:
            return RaisedError.of(error)
        kind: Any = self._answers[order.kind]
        message: WorkerMessage = kind.model_construct(value=value)
        return message


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function of a module, whose first argument the other process adds."""

    function: str
    """Its import path, `module:name`."""
    arguments: str
    """The others by name, as JSON; in place of a socket stands its index."""
    sockets: tuple[socket.socket, ...] = ()

    @classmethod
    def of(cls, function: Callable[..., object], *arguments: object) -> FunctionCall:
        """The call with these arguments, of the types that the function's annotations say."""
        values = inspect.signature(function).bind(None, *arguments).arguments
        del values[next(iter(values))]
        sockets = [value for value in values.values() if isinstance(value, socket.socket)]
        indexed = {
            key: sockets.index(value) if isinstance(value, socket.socket) else value for key, value in values.items()
        }
        kind: Any = _arguments_of(function)
        message = kind.model_construct(**indexed)
        return cls(
            f"{function.__module__}:{function.__qualname__}",
            message.model_dump_json(exclude_unset=True),
            tuple(sockets),
        )

    def execute(self, first: object) -> None:
        """Import the function and call it."""
        function = imported(self.function)
        message = _arguments_of(function).model_validate_json(self.arguments)
        values = {key: getattr(message, key) for key in message.model_fields_set}
        hints = get_type_hints(function)
        sockets = {key: self.sockets[value] for key, value in values.items() if _is_socket(hints[key], value)}
        function(first, **{**values, **sockets})


def imported(path: str) -> Any:
    """What an import path `module:name` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _to_path(value: Any) -> dict[str, Any]:
    kind = type(value)
    values = TypeAdapter(kind).dump_python(value, mode="json")
    return {"type": f"{kind.__module__}:{kind.__qualname__}", "values": values}


def _from_path(value: Any) -> Any:
    return TypeAdapter(imported(value["type"])).validate_python(value["values"])


ByImportPath = Annotated[Any, PlainSerializer(_to_path), PlainValidator(_from_path)]
"""A dataclass of any type, written as the import path of the type and the values of its fields."""


def _arguments_of(function: Callable[..., object]) -> type[WorkerMessage]:
    """The arguments of a function but for its first; a socket is an index."""
    hints = get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    types = {one.name: int | None if _is_socket(hints[one.name], 0) else hints[one.name] for one in parameters}
    required = {one.name for one in parameters if one.default is one.empty}
    kinds: dict[str, Any] = {name: (kind, ...) if name in required else (kind, None) for name, kind in types.items()}
    return create_model(function.__name__, __base__=WorkerMessage, **kinds)


def _is_socket(hint: Any, value: Any) -> bool:
    return value is not None and (hint is socket.socket or socket.socket in get_args(hint))


def _message(name: str, fields: dict[str, Any]) -> type[WorkerMessage]:
    kind: Any = Literal[name]
    types: dict[str, Any] = {key: (hint, ...) for key, hint in fields.items()}
    return create_model(name, __base__=WorkerMessage, kind=(kind, name), **types)


def _one_of(*kinds: type[WorkerMessage]) -> TypeAdapter[Any]:
    union: Any = Union[kinds]  # noqa: UP007 - made at run time
    return TypeAdapter(Annotated[union, Field(discriminator="kind")])
