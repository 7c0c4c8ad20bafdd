"""Facts in a model's file: the run that made it, its rounds and its privacy budget.

Facts are safetensors metadata, texts by name, which every reader of the format shows (`safe_open(...).metadata()`).
They are a part of the file, so its hash covers them; the bytes of the tensors are the same with them and without.

Format: https://huggingface.co/docs/safetensors, section "Format".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

from fedcore.errors import ConfigurationError, EncodingError, PeerError
from fedcore.state.files import FileSink, file_size, read_metadata, sha256_tensors
from fedcore.state.model import ModelState

_PREFIX: Final = "fedcore."
_MOST_CHARACTERS: Final = 1 << 20
"""Of one fact: a strategy may tell its clients whole arrays, which are no facts."""
_KEYS: Final = {"train_configs": "told"}
_FORMAT: Final = {"format": "pt"}
"""transformers reads no file whose metadata lack it, although it reads those without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Where a model comes from.

    run, federation: empty for a simulation.
    app, app_sha256: the app that made it, its name if it is known.
    rounds: that it has seen.
    epsilon, delta: what the run had spent by then; None without differential privacy.
    time: when the file was written, ISO 8601 with a time zone.
    kind: "final", "checkpoint" (of a run that goes on, or came to no end) "best" (of the evaluations; `best` says by
        which metric) or "own" (a client's).
    run_config: that it was made with.
    train_configs: the configurations, by their keys and as `config_to_json` has them, that every client got with the
        last round of training, such as a federation's means; empty if they are not known, as after a plain exchange.
    """

    app_sha256: str
    rounds: int
    time: str
    app: str = ""
    kind: str = "final"
    run: str = ""
    federation: str = ""
    epsilon: float | None = None
    delta: float | None = None
    best: str = ""
    run_config: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    train_configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def to_metadata(self) -> dict[str, str]:
        """As safetensors metadata; what there is nothing to say of is left out."""
        values = {name: value for name, value in asdict(self).items() if value not in ("", None, {})}
        texts = {name: _text(value) for name, value in values.items()}
        return _FORMAT | {_key(name): text for name, text in texts.items() if len(text) <= _MOST_CHARACTERS}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Self | None:
        """The facts in a file's metadata, None if no fedcore wrote them; raises PeerError if they are damaged."""
        texts = {one.name: metadata.get(_key(one.name)) for one in fields(cls)}
        values: dict[str, Any] = {name: text for name, text in texts.items() if text is not None}
        if not values:
            return None
        try:
            values["rounds"] = int(values["rounds"])
            values |= {name: _finite(values[name]) for name in ("epsilon", "delta") if name in values}
            values |= {name: _object(values[name]) for name in ("run_config", "train_configs") if name in values}
            datetime.fromisoformat(values["time"])
            return cls(**values)
        except (KeyError, TypeError, ValueError, RecursionError):
            raise PeerError("the metadata of the model's file are not those that fedcore writes") from None


def write_model(state: ModelState, path: Path, facts: ModelFacts) -> None:
    """Write a model and its facts to `path`, whole or not at all, durable on return; raises StorageFull.

    `path` may be the file that `state` is mapped from.
    """
    with FileSink(path, state.layout, facts.to_metadata()) as sink:
        state.write_to(sink)


def written_as(state: ModelState, facts: ModelFacts) -> tuple[str, int]:
    """SHA-256 and bytes of the file that `write_model` would write."""
    metadata = facts.to_metadata()
    return sha256_tensors(state.layout, state, metadata, release=state.release), file_size(state.layout, metadata)


def read_facts(path: Path) -> ModelFacts | None:
    """What a file says of its model, None if it says nothing; raises PeerError and OSError."""
    return ModelFacts.from_metadata(read_metadata(path))


def open_initial(path: Path) -> ModelState:
    """The model that a person names to start from; raises ConfigurationError if the file holds none."""
    try:
        return ModelState.open(path)
    except OSError as error:
        raise ConfigurationError(f"--initial-model: {path} cannot be read: {error.strerror}") from None
    except (PeerError, EncodingError) as error:
        raise ConfigurationError(f"--initial-model: {path} is no safetensors file of a model: {error}") from None


def _key(name: str) -> str:
    """The name of a fact in a file, where it may differ from the field's."""
    return _PREFIX + _KEYS.get(name, name)


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else f"{value}"


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return value
