"""`fedcore predict`: rows of answers from a trained model, out of the app's own predictor."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
import typer

from fedcore.cli import user_output_to_stderr
from fedcore.errors import AppError, ConfigurationError, EnvironmentFailure
from fedcore.flower.apps.trained import TrainedModel
from fedcore.system.files import check_place, write_file
from fedcore.trained.opening import open_trained

Row = Mapping[str, Any]
FORMS: Final = (".csv", ".jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What `fedcore predict` is asked to do."""

    model: Path
    app: Path
    file: Path
    out: Path | None
    force: bool
    run_config: Sequence[str]

    def carry_out(self, as_json: bool) -> None:
        """Print or write the rows; raises FedcoreError."""
        self._check()
        with user_output_to_stderr():
            trained = open_trained(self.app, self.model, self.run_config)
            rows = predicted(trained, self.file)
        if self.out is not None:
            _write(self.out, as_text(rows, self.out.suffix))
        if as_json:
            typer.echo(json.dumps(self._summary(trained, rows), indent=2))
        elif self.out is not None:
            typer.echo(f"{len(rows)} rows saved to {self.out}")
        else:
            sys.stdout.write(as_text(rows, ".csv"))

    def _check(self) -> None:
        if not self.file.is_file():
            raise ConfigurationError(f"--input: there is no file {self.file}")
        if self.out is None:
            return
        if self.out.suffix not in FORMS:
            raise ConfigurationError(
                f"--out: {self.out} must end in {' or '.join(FORMS)}, which says how it is written"
            )
        check_place(self.out, force=self.force)

    def _summary(self, trained: TrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
        facts = asdict(trained.facts) if trained.facts is not None else None
        known = {"model": str(self.model), "app": trained.app.name, "facts": facts, "warnings": list(trained.warnings)}
        return {**known, "count": len(rows)} | ({"rows": list(rows)} if self.out is None else {"out": str(self.out)})


def predicted(trained: TrainedModel, file: Path) -> list[Row]:
    """The rows of the app's predictor, each checked; raises AppError for what is no row, and what the app raises."""
    with torch.no_grad():
        rows = trained.rows(file)
        if not isinstance(rows, Iterable):
            raise AppError(f"{trained.app.predictor} returned a {type(rows).__name__}, not rows")
        return list(_checked(rows, trained.app.predictor))


def as_text(rows: Sequence[Row], form: str) -> str:
    """The rows as .csv, with a header, or as .jsonl."""
    if form == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: json.dumps(value) if isinstance(value, list) else value for key, value in row.items()})
    return text.getvalue() if rows else ""


def _checked(rows: Iterable[object], reference: str) -> Iterator[Row]:
    names: list[str] | None = None
    for number, row in enumerate(rows, 1):
        where = f"row {number} of {reference}"
        if not isinstance(row, Mapping) or not all(isinstance(key, str) for key in row):
            raise AppError(f"{where} is a {type(row).__name__}, not a dict of names and values")
        for key, value in row.items():
            _check_value(value, f"{where}: {key}")
        names = names or list(row)
        if list(row) != names:
            raise AppError(f"{where} has {', '.join(row)}; the first row has {', '.join(names)}")
        yield dict(row)


def _check_value(value: object, where: str) -> None:
    for one in value if isinstance(value, list) else [value]:
        if one is not None and type(one) not in (bool, int, float, str):
            raise AppError(
                f"{where} is a {type(one).__name__}; give plain Python values, as tensor.item() and tolist() do"
            )
        if isinstance(one, float) and not math.isfinite(one):
            raise AppError(f"{where} is {one}: the model gives no number for this example; has it missing values?")


def _write(path: Path, text: str) -> None:
    try:
        write_file(path, text)
    except OSError as error:
        raise EnvironmentFailure(f"--out: {path} cannot be written ({error.strerror}); name another file") from error
