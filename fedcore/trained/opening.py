"""The trained model that `fedcore predict` and `fedcore export` are about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from fedcore.flower.apps.trained import TrainedModel, load_trained
from fedcore.system.assignments import parse_assignments


def open_trained(app: Path, model: Path, run_config: Sequence[str]) -> TrainedModel:
    """Load it, and say on the terminal what to know of it; run_config: key=value. Raises as `load_trained`."""
    trained = load_trained(app.absolute(), model, parse_assignments(run_config))
    for line in trained.warnings:
        typer.echo(f"warning: {line}", err=True)
    return trained
