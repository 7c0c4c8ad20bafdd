"""Calls of an object in another process: the annotations of its class say what a message may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, Union, get_type_hints

from pydantic import Field, TypeAdapter, create_model

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
        return self._orders[method.__name__].model_construct(**arguments)

    def carry_out(self, target: Target, order: Any) -> WorkerMessage:
        """Call the method that the order names; the answer holds what it returned, or raised."""
        arguments = {key: getattr(order, key) for key in type(order).model_fields if key != "kind"}
        try:
            value = getattr(target, order.kind)(**arguments)
        except Exception as error:
            return RaisedError.of(error)
        return self._answers[order.kind].model_construct(value=value)


def _message(name: str, fields: dict[str, Any]) -> type[WorkerMessage]:
    kind: Any = Literal[name]
    types: dict[str, Any] = {key: (hint, ...) for key, hint in fields.items()}
    return create_model(name, __base__=WorkerMessage, kind=(kind, name), **types)


def _one_of(*kinds: type[WorkerMessage]) -> TypeAdapter[Any]:
    union: Any = Union[kinds]  # noqa: UP007 - made at run time
    return TypeAdapter(Annotated[union, Field(discriminator="kind")])
