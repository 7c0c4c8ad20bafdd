"""Downloads of a run: its model, its results, or everything in one folder or archive."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import typer

from client_app.operator.client import OperatorClient
from client_app.operator.resolve_run import resolve_run
from client_app.records.transcript import TRANSCRIPT_FILE, TranscriptEntry
from fedcore.errors import ConfigurationError, PeerError, StorageFull
from fedcore.federation.transcript import SignedRecord, record_hash
from fedcore.monitoring.output_paths import OutputPaths
from fedcore.state import read_facts, sha256_file
from fedcore.system.files import check_no_folder, check_own_folder
from fedcore.system.terminal import visible
from fedcore.wire.events import RunOut
from fedcore.wire.operator import RESULTS_FILE, RunFilesOut, RunStatus

Fetch = Callable[[str, str, Path], None]
"""(path of a file of the run, its SHA-256, target) -> None"""


def fetch_results(listed: RunFilesOut, home: OutputPaths, fetch: Fetch) -> dict[str, Any]:
    """Download the files of a run; returns their part of the summary. Raises FedcoreError."""
    results: Any = {}
    for file in listed.files:
        target = home.path_of(file.path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageFull(f"cannot make {target.parent}: {error.strerror}") from error
        fetch(file.path, file.sha256, target)
        if file.path == RESULTS_FILE:
            results = _read(target)
    own = sum(file.path != RESULTS_FILE for file in listed.files)
    return {
        "results": results,
        "results_file": str(home.results) if results else None,
        "files": str(home.files) if own else None,
    }


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise PeerError(f"{path} holds no results in JSON form") from None


MODEL_FILE: Final = "model.safetensors"
_RUN_FILE: Final = "run.json"
_ENTRIES: Final = (_RUN_FILE, "events.jsonl", MODEL_FILE, RESULTS_FILE, "files", TRANSCRIPT_FILE)
"""What the folder of a run has."""
_ARCHIVES: Final = {".tar": "w", ".gz": "w:gz", ".tgz": "w:gz"}


def check_free(out: Path, *, force: bool) -> None:
    """Raise ConfigurationError rather than overwrite a file."""
    if out.is_dir() or (out.exists() and not force):
        hint = "name a file" if out.is_dir() else "name another file, or replace it with --force"
        raise ConfigurationError(f"--out: {out} exists already; {hint}")


def fetch_best_model(client: OperatorClient, word: str, out: Path, *, as_json: bool) -> None:
    """Save the best model of a run, and print what it is best at; raises Refused if there is none."""
    run = resolve_run(client, word)
    client.fetch_best_model(run, out)
    facts = read_facts(out)
    if as_json:
        details = asdict(facts) if facts is not None else {}
        typer.echo(json.dumps({"model": str(out), "sha256": sha256_file(out), **details}, indent=2))
        return
    rounds, best = (facts.rounds, facts.best) if facts is not None else ("?", "")
    typer.echo(f"saved {out}: the best model of run {run}, that of round {rounds}: {visible(best)}")


def fetch_model(client: OperatorClient, word: str, out: Path, *, as_json: bool) -> None:
    """Save a run's model, and print what it is; raises ConfigurationError if there is none."""
    state = client.show(resolve_run(client, word))
    if state.model is None:
        why = "it has no checkpoint yet" if not state.status.final else "it left none"
        raise ConfigurationError(f"run {state.run} ({state.status}) has no model: {why}", check="no-model")
    client.fetch_model(state.run, state.model, out)
    facts = read_facts(out)
    kind = "final" if state.status is RunStatus.FINISHED else "checkpoint"
    if as_json:
        details = asdict(facts) if facts is not None else {}
        typer.echo(json.dumps({"model": str(out), "sha256": state.model.sha256, **details, "kind": kind}, indent=2))
        return
    rounds = facts.rounds if facts is not None else state.rounds
    what = "the final model" if kind == "final" else f"the last checkpoint (the run is {state.status})"
    typer.echo(f"saved {out}: {what} of run {state.run}, {rounds} rounds")


def export_run(client: OperatorClient, word: str, out: Path | None, *, force: bool, as_json: bool) -> None:
    """Save a run as a folder or an archive, by the suffix of `out`; raises ConfigurationError."""
    state = client.show(resolve_run(client, word))
    target = out if out is not None else Path(f"run-{state.run}")
    if target.exists() and not force:
        raise ConfigurationError(f"--out: {target} exists already; name another path, or replace it with --force")
    archive = _ARCHIVES.get(target.suffix)
    if archive is None:
        check_own_folder(target, _ENTRIES, mark=_RUN_FILE)
    else:
        check_no_folder(target)
    try:
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.absolute().parent, prefix=".export-") as made:
            folder = Path(made) / f"run-{state.run}"
            folder.mkdir()
            _gather(client, state, folder)
            files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
            _move(folder, target, archive)
    except OSError as error:
        raise StorageFull(f"cannot write {target}: {error.strerror}") from error
    typer.echo(
        json.dumps({"run": state.run, "out": str(target), "files": files}, indent=2)
        if as_json
        else f"run {state.run} is in {target}: {', '.join(files[:8])}{', ...' if len(files) > 8 else ''}"
    )


def _gather(client: OperatorClient, state: RunOut, folder: Path) -> None:
    settings = state.model_dump(mode="json", exclude={"events"})
    (folder / _RUN_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    events = "".join(item.model_dump_json() + "\n" for item in state.events)
    (folder / "events.jsonl").write_text(events, encoding="utf-8")
    if state.model is not None:
        client.fetch_model(state.run, state.model, folder / MODEL_FILE)
    home = OutputPaths(folder / MODEL_FILE, folder / "results.json", folder / "files")
    fetch_results(client.files(state.run), home, partial(client.fetch_file, state.run))
    lines = [entry.model_dump_json(exclude_none=True) + "\n" for entry in _records(client, state.run)]
    if lines:
        (folder / TRANSCRIPT_FILE).write_text("".join(lines), encoding="utf-8")


def _records(client: OperatorClient, run: str) -> Iterator[TranscriptEntry]:
    """The run's records in the form of a client's copy, so that the same command verifies them."""
    records = list(client.records())
    own = [index for index, signed in enumerate(records) if signed.record.task["run"] == run]
    if not own:
        return
    for roster in client.rosters():
        yield TranscriptEntry(event="roster", hash=roster.hash().hex(), roster=roster)
    yield TranscriptEntry(event="began", hash=records[own[0]].record.announced().previous)
    for signed in records[own[0] : own[-1] + 1]:
        yield TranscriptEntry(event="linked", hash=_hash(signed), linked=signed)


def _hash(signed: SignedRecord) -> str:
    return record_hash(signed.record.outcome(signed.record.announced()), complete=signed.complete)


def _move(folder: Path, target: Path, archive: Any) -> None:
    """Move the folder to `target`, or pack it there; replaces what was there."""
    if archive is not None:
        packed = folder.with_name("packed")
        with tarfile.open(packed, archive) as tar:
            tar.add(folder, arcname=folder.name)
        packed.replace(target)
        return
    if target.is_dir():
        shutil.rmtree(target)
    folder.replace(target)
