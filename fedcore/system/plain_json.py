"""Frozen dataclasses as plain JSON and back; what a peer or a file says is checked on the way in.

The dataclasses are ordinary ones whose `__post_init__` checks what their values mean; pydantic checks names and types.
Numbers in them are `StrictInt` and `StrictFloat`: a whole number may stand for one with a point, since some JSON
writers drop it, and nothing else is converted.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedcore.errors import ConfigurationError, EncodingError

T = TypeVar("T")

NO_OTHER_KEYS: Final = ConfigDict(extra="forbid")
"""The `__pydantic_config__` of a dataclass that refuses keys which it does not know."""


def to_plain(form: TypeAdapter[T], value: T) -> dict[str, Any]:
    """`value` as an object for `json.dumps`."""
    plain: dict[str, Any] = form.dump_python(value, mode="json")
    return plain


def from_plain(form: TypeAdapter[T], data: object, *, what: str, error: type[ConfigurationError] = EncodingError) -> T:
    """The inverse of `to_plain`. Raises `error`, which names the field and never repeats its value."""
    try:
        return form.validate_python(data)
    except ValidationError as refusal:
        raise error(f"{what} {_describe(refusal)}") from None


def _describe(refusal: ValidationError) -> str:
    """What is wrong first, after the name of the thing: "lacks 'scales'"."""
    first = refusal.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    match first["type"]:
        case "missing":
            return f"lacks {where!r}"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"has the unknown key {where!r}"
        case _:
            return f"has a wrong value at {where!r}: {first['msg'].lower()}" if where else f"is wrong: {first['msg']}"
