"""The folder of one comparison, and the file in it that tells it from others."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedcore.compare.job import CompareJob
from fedcore.compare.network import Cost
from fedcore.errors import ConfigurationError
from fedcore.flower.bundle import AppBundle

JOB_FILE = "job.json"
SCHEMA = "fedcore/compare/job/1"


@dataclass(frozen=True, slots=True)
class OutFolder:
    """The folder of one comparison, told from others by its job.json."""

    path: Path

    def check(self, job: CompareJob, *, force: bool) -> None:
        """Raise ConfigurationError for a place where `job` cannot put its results; changes nothing.

        A folder that holds something else than a comparison is never touched, one of another job with `force` alone.
        """
        if any(path.exists() and not path.is_dir() for path in (self.path, *self.path.parents)):
            raise ConfigurationError(f"--out: {self.path} is a file, or lies below one; name a folder")
        if self._empty:
            return
        if not (self.path / JOB_FILE).is_file():
            what = "holds something else than a comparison; it is left as it is"
            if not force:
                what = "is not empty; choose another --out"
            raise ConfigurationError(f"{self.path} {what}")
        if not force:
            self._check_same(_fingerprint(job))

    def prepare(self, job: CompareJob, *, force: bool) -> None:
        """Make the folder, or take it as an earlier start of the same job left it; `force` begins anew."""
        self.check(job, force=force)
        if not self._empty:
            if not force:
                return
            # Renamed first, so that a crash in between leaves either the old folder or none.
            trash = Path(tempfile.mkdtemp(dir=self.path.parent, prefix=".fedcore-old-"))
            self.path.replace(trash / self.path.name)
            shutil.rmtree(trash)
        self.path.mkdir(parents=True, exist_ok=True)
        self._write({"schema": SCHEMA, "job": _fingerprint(job), "cost": None})

    def cost(self) -> Cost | None:
        """What computation was found to cost when the comparison began."""
        if not (self.path / JOB_FILE).is_file():
            return None
        found = self._read()["cost"]
        return Cost(**found) if found else None

    def keep_cost(self, cost: Cost) -> None:
        """For when the comparison goes on after an interruption."""
        self._write({**self._read(), "cost": asdict(cost)})

    @property
    def _empty(self) -> bool:
        return not self.path.exists() or not any(self.path.iterdir())

    def _check_same(self, asked: Mapping[str, Any]) -> None:
        found = self._read()["job"]
        differing = [key for key in asked if found.get(key) != asked[key]]
        if differing:
            which = "; ".join(f"{key}: {found.get(key)} there, {asked[key]} here" for key in differing)
            raise ConfigurationError(
                f"{self.path} holds another comparison ({which}); choose another --out, or --force to replace it"
            )

    def _read(self) -> dict[str, Any]:
        try:
            document = json.loads((self.path / JOB_FILE).read_text(encoding="utf-8"))
        except ValueError:
            document = {}
        if document.get("schema") != SCHEMA:
            raise ConfigurationError(f"{self.path / JOB_FILE} cannot be read; --force begins anew")
        return document  # type: ignore[no-any-return]

    def _write(self, document: Mapping[str, Any]) -> None:
        draft = self.path / f".{JOB_FILE}"
        draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, self.path / JOB_FILE)


def _fingerprint(job: CompareJob) -> dict[str, Any]:
    """Everything that decides what a comparison finds, as plain JSON."""
    return {
        "app": job.app.name,
        "app_sha256": AppBundle.from_folder(job.app.folder).sha256,
        "modes": [mode.label for mode in job.modes],
        "clients": job.sites,
        "seeds": list(job.seeds),
        "partition": job.partition,
        "network": job.network.name if job.network is not None else "none",
        "run_config": dict(job.run_config),
        "set": {key: list(values) for key, values in job.sweep.items()},
        "kill": f"client-{job.kill.site + 1}@{job.kill.round}" if job.kill is not None else None,
        "versions": {name: version(name) for name in ("fedcore", "flwr", "torch")},
    }
