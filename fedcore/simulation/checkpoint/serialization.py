"""Values of fedcore as plain JSON and back, for the state of a simulation on disk.

Dataclasses, pydantic messages and objects with slots of this package become an object with the name of their class and
their fields; so do enumerations, bytes, tuples, sets, dictionaries of any keys, and arrays. On the way back a name is
looked up in modules of this package alone, and what it names has to be such a class: nothing in the file is run. So a
folder from somebody else is at worst wrong.
"""

from __future__ import annotations

import dataclasses
import importlib
from array import array
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

import numpy as np
from pydantic import BaseModel

from fedcore.errors import ConfigurationError, UsageError

TYPE: Final = "type"
_SEQUENCES: Final[Mapping[str, type]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def to_json(value: Any) -> Any:
    """`value` for `json.dumps`; raises UsageError for what has no such form."""
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
        return value
    kind = type(value)
    if kind is list:
        return [to_json(one) for one in value]
    if kind.__name__ in _SEQUENCES and kind.__module__ == "builtins":
        return {TYPE: kind.__name__, "items": [to_json(one) for one in value]}
    if kind is dict:
        return {TYPE: "dict", "items": [[to_json(key), to_json(one)] for key, one in value.items()]}
    if isinstance(value, bytes):
        return {TYPE: "bytes", "hex": value.hex()}
    if isinstance(value, np.ndarray):
        return {TYPE: "ndarray", "dtype": value.dtype.str, "shape": list(value.shape), "hex": value.tobytes().hex()}
    if isinstance(value, array):
        return {TYPE: "array", "code": value.typecode, "hex": value.tobytes().hex()}
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not _is_ours(kind):
        raise UsageError(f"a {name} cannot be kept")
    if isinstance(value, Enum):
        return {TYPE: name, "value": to_json(value.value)}
    return {TYPE: name, "fields": {field: to_json(one) for field, one in _fields(value)}}


def from_json(data: Any) -> Any:
    """The inverse of `to_json`; raises ConfigurationError for what it did not write."""
    if isinstance(data, list):
        return [from_json(one) for one in data]
    if not isinstance(data, dict):
        return data
    try:
        return _object(data)
    except (KeyError, ValueError, TypeError, AttributeError, ImportError) as error:
        raise ConfigurationError(
            f"the kept state of a simulation is not sound: {error!r}", check="unsound-state"
        ) from None


def _object(data: Mapping[str, Any]) -> Any:
    kind = data[TYPE]
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](from_json(one) for one in data["items"])
    match kind:
        case "dict":
            return {from_json(key): from_json(one) for key, one in data["items"]}
        case "bytes":
            return bytes.fromhex(data["hex"])
        case "ndarray":
            flat = np.frombuffer(bytes.fromhex(data["hex"]), data["dtype"])
            return flat.reshape(data["shape"]).copy()
        case "array":
            return array(data["code"], bytes.fromhex(data["hex"]))
    found = _class(kind)
    if issubclass(found, Enum):
        return found(from_json(data["value"]))
    fields = {name: from_json(one) for name, one in data["fields"].items()}
    if issubclass(found, BaseModel):
        return found.model_construct(**fields)
    made = object.__new__(found)
    for name, one in fields.items():
        object.__setattr__(made, name, one)
    return made


def _class(name: str) -> type:
    module, _, path = name.partition(":")
    if not module.startswith("fedcore."):
        raise ValueError(f"{name} is no class of this package")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and _is_ours(found)):
        raise ValueError(f"{name} is no class that is kept")
    return found


def _is_ours(kind: type) -> bool:
    if not kind.__module__.startswith("fedcore."):
        return False
    return dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel | Enum) or "__slots__" in vars(kind)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, BaseModel):
        names: Any = type(value).model_fields
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    else:
        names = type(value).__slots__
    return ((name, getattr(value, name)) for name in names)
