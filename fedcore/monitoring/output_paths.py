"""Paths of the outputs of a run next to its model: `model.results.json`, `model.card.md`, the folder `model.files`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

from fedcore.errors import ConfigurationError
from fedcore.monitoring.progress import metrics_text
from fedcore.system.files import check_makeable, check_replaceable, write_file
from fedcore.system.left_files import LeftFiles
from fedcore.wire.operator import RESULTS_FILE


@dataclass(frozen=True, slots=True)
class OutputPaths:
    """The places of a run's results.

    model: a file, `model.safetensors`, say.
    """

    model: Path
    results: Path
    files: Path

    @classmethod
    def next_to(cls, model: Path) -> Self:
        """The places that go with a model's."""
        return cls(model, model.with_name(f"{model.stem}.results.json"), model.with_name(f"{model.stem}.files"))

    @property
    def card(self) -> Path:
        """Where the model's card goes."""
        return self.model.with_name(f"{self.model.stem}.card.md")

    def check_free(self, *, force: bool, option: str = "--out") -> None:
        """Refuse to write over what is there, and a place that no model can be saved to; raises ConfigurationError."""
        if self.model.is_dir():
            raise ConfigurationError(f"{option}: {self.model} is a folder; name the file for the model")
        check_makeable(self.model, option=option)
        for path in (self.model, self.results, self.files, self.card):
            check_replaceable(path, force=force, option=option)

    def path_of(self, path: str) -> Path:
        """The destination of a file of a run: `results.json`, or `files/...` as the app named it."""
        if path == RESULTS_FILE:
            return self.results
        return self.files.joinpath(*PurePosixPath(path).parts[1:])

    def write(self, results: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """Keep results, and copies of the files in the folder `folder`; what the summary says of it. Raises OSError."""
        self.model.parent.mkdir(parents=True, exist_ok=True)
        if results:
            write_file(self.results, json.dumps(results, indent=2) + "\n")
        count = 0
        for path, file, _ in LeftFiles(folder).read():
            target = self.files / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as copy:
                shutil.copyfileobj(file, copy)
            count += 1
        return {"results_file": str(self.results) if results else None, "files": str(self.files) if count else None}


def saved_lines(summary: Mapping[str, Any]) -> list[str]:
    """Lines with the paths of a run's model, results and files, if there are any."""
    places = (
        ("model", "model"),
        ("best model", "best_model"),
        ("results", "results_file"),
        ("files of the ServerApp", "files"),
    )
    return [f"{what} saved to {summary[key]}" for what, key in places if summary.get(key)]


def server_line(results: Mapping[str, Any]) -> str:
    """What the ServerApp's own evaluation ended with; "" if there was none."""
    rounds = results.get("server")
    if not isinstance(rounds, dict) or not rounds:
        return ""
    last = max(rounds, key=int)
    return f"evaluated by the ServerApp, round {last}: {metrics_text(rounds[last])}"
