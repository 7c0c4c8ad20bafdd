"""Implementation of `fedcore client export`: saves the client's personal model for its owner."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import NoReturn

from client_app.records.ledger_entries import LEDGER_FILE
from fedcore.errors import ConfigurationError, EnvironmentFailure
from fedcore.federation import ClientKit
from fedcore.state import OWN_MODEL_FOLDER, ModelFacts, OwnModel, OwnModelFolder, read_facts, write_model
from fedcore.wire.base import moment


def export_model(kit: Path, state_dir: Path | None, out: Path, *, as_json: bool = False) -> str:
    """Save the personal model of a kit's client; returns a description, as a sentence or as JSON.

    Raises ConfigurationError if there is none, EnvironmentFailure if `out` cannot be written.
    """
    model = own_model(kit, state_dir)
    _save(model, out)
    return json.dumps(_facts(model, out), indent=2) if as_json else _sentence(model, out)


def own_model(kit: Path, state_dir: Path | None = None) -> OwnModel:
    """The personal model of a kit's client; raises ConfigurationError if there is none."""
    state = state_dir or ClientKit.load(kit).folder / "state"
    model = OwnModelFolder(state / OWN_MODEL_FOLDER).load()
    if model is None:
        _explain_absence(state)
    return model


def _explain_absence(state: Path) -> NoReturn:
    ledger = state / LEDGER_FILE
    if not ledger.exists() or not ledger.stat().st_size:
        raise ConfigurationError(
            f"this client has not taken part in a round yet, {state} is empty; start it with `fedcore client`, or name "
            "the folder of its agent with --state-dir"
        )
    raise ConfigurationError(
        f"there is no personal model in {state}: the app keeps none, or its first round has not ended; a "
        "ClientApp keeps "
        "one if it has personal tensors or fine-tunes"
    )


def _save(model: OwnModel, out: Path) -> None:
    try:
        write_model(model.state, out, _model_facts(model))
    except OSError as error:
        raise EnvironmentFailure(f"--out: {out} cannot be written ({error.strerror}); name another file") from error


def _model_facts(model: OwnModel) -> ModelFacts:
    record = model.record
    now = moment(time.time())
    return ModelFacts(kind="own", app_sha256=record.app_sha256, run=record.run, rounds=record.server_round, time=now)


def _facts(model: OwnModel, out: Path) -> dict[str, object]:
    facts = {field.name: getattr(model.record, field.name) for field in dataclasses.fields(model.record)}
    header = read_facts(out)
    metadata = header.to_metadata() if header is not None else {}
    return {
        "model": str(out),
        **facts,
        "metadata": metadata,
        "tensors": len(model.state),
        "bytes": model.state.layout.nbytes,
    }


def _sentence(model: OwnModel, out: Path) -> str:
    record = model.record
    metrics = "".join(f", {name} {value:.4f}" for name, value in record.metrics.items() if isinstance(value, float))
    return (
        f"saved {out}: the client's personal model after round {record.server_round} of run {record.run}, "
        f"{len(record.personal)} of {len(model.state)} tensors personal{metrics}"
    )
