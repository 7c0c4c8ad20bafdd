"""The output folder of one comparison, and the file in it that identifies the comparison."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedcore.comparison.app_probe import AppFacts
from fedcore.comparison.plan import RUNS_FOLDER, TUNING_FOLDER, CompareJob
from fedcore.errors import ConfigurationError
from fedcore.flower.app import AppBundle
from fedcore.system.files import Lock, write_file

JOB_FILE = "job.json"
LOCK_FILE = ".lock"
SCHEMA = "fedcore/compare/job/2"
OWN_ENTRIES = frozenset(
    {
        JOB_FILE, LOCK_FILE, RUNS_FOLDER, TUNING_FOLDER, "federation", "figures", "report.html", "report.json",
        "report.md", "metrics.csv", "history.csv", "export",
    }
)  # fmt: skip
"""What the folder of a comparison has, those of `ComparisonResult.save` among them."""


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

    @contextlib.contextmanager
    def opened(self, job: CompareJob, *, force: bool) -> Iterator[None]:
        """Make the folder, or take it as an earlier start of the same job left it; `force` starts over.

        Nobody else can open it meanwhile. Raises what `check` raises.
        """
        self.check(job, force=force)
        with contextlib.ExitStack() as stack:
            if not self._empty:
                stack.enter_context(self._locked())
                if force:
                    self._discard()
            if self._empty:
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(self._locked())
                self._write({"schema": SCHEMA, "job": _fingerprint(job), "survey": None})
            yield

    def facts(self) -> AppFacts | None:
        """What was found out about the app when the comparison began; None if it has not."""
        if not (self.path / JOB_FILE).is_file():
            return None
        document = self._read()["survey"]
        return AppFacts.model_validate(document) if document else None

    def keep_facts(self, facts: AppFacts) -> None:
        """For when the comparison goes on after an interruption, by the same clock."""
        self._write({**self._read(), "survey": facts.model_dump(mode="json")})

    def _locked(self) -> Lock:
        return Lock(self.path / LOCK_FILE, in_use=f"another `fedcore compare` runs in {self.path}")

    def _discard(self) -> None:
        """Renamed first, so that a crash in between leaves either the old folder or none."""
        trash = Path(tempfile.mkdtemp(dir=self.path.parent, prefix=".fedcore-old-"))
        self.path.replace(trash / self.path.name)
        shutil.rmtree(trash)

    @property
    def _empty(self) -> bool:
        return not self.path.exists() or not any(self.path.iterdir())

    def _check_same(self, requested: Mapping[str, Any]) -> None:
        stored = self._read()["job"]
        differing = [key for key in requested if stored.get(key) != requested[key]]
        if differing:
            which = "; ".join(f"{key}: {stored.get(key)} there, {requested[key]} here" for key in differing)
            raise ConfigurationError(
                f"{self.path} holds another comparison ({which}); choose another --out, or --force to replace it",
                check="other-comparison",
            )

    def _read(self) -> dict[str, Any]:
        try:
            document = json.loads((self.path / JOB_FILE).read_text(encoding="utf-8"))
        except ValueError:
            document = {}
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ConfigurationError(
                f"{self.path / JOB_FILE} cannot be read; --force starts over", check="unreadable-job"
            )
        return document

    def _write(self, document: Mapping[str, Any]) -> None:
        write_file(self.path / JOB_FILE, json.dumps(document, indent=1) + "\n")


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
        "budget": job.budget.text if job.budget.changes_runs else None,
        "tune": {key: list(values) for key, values in job.tuning.values.items()} if job.tuning else None,
        "validation": job.tuning.share if job.tuning else None,
        "kill": str(job.kill) if job.kill is not None else None,
        "versions": {name: version(name) for name in ("fedcore", "flwr", "torch")},
    }
