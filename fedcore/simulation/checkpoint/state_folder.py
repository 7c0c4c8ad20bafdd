"""The folder of a simulation that can be resumed, and which run it is of.

`run.json` says which run it is; in `steps` lies its journal (`journal_folder`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from fedcore.errors import ConfigurationError
from fedcore.run.settings import JobSettings
from fedcore.system.files import Lock, write_file
from fedcore.system.version import fedcore_version

RUN_FILE: Final = "run.json"
FORMAT: Final = 3
"""Of the folder: each part of a run writes its own state, and each step what the journal compares."""


@dataclass(slots=True, kw_only=True)
class StateFolder:
    """The folder of one run.

    secret
        From which the keys of its simulated clients follow.
    """

    path: Path
    secret: bytes
    _lock: Lock

    @classmethod
    def open(cls, path: Path, identity: Mapping[str, str]) -> StateFolder:
        """Begin a run in a folder, or resume the one that is there; raises ConfigurationError if it is another.

        A run that ended before its first exchange leaves its folder to any other.

        identity
            Tells one run from another (`run_identity`).
        """
        path = path.absolute()  # ServerApps run in a folder of their own
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"--state: {path} cannot be a folder: {error.strerror}") from None
        with contextlib.ExitStack() as stack:
            lock = stack.enter_context(Lock(path, in_use=f"--state: another simulation is at work in {path}"))
            secret = _secret_of(path, identity)
            stack.pop_all()
        return cls(path=path, secret=secret, _lock=lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let others have the folder."""
        self._lock.close()

    @property
    def steps(self) -> Path:
        """Where the journal is."""
        return self.path / "steps"


def run_identity(settings: JobSettings, options: Mapping[str, object]) -> dict[str, str]:
    """What tells one run from another: a hash of each option that decides it, by its name.

    Raises ConfigurationError for a run that cannot be resumed.
    """
    if settings.buffered:
        raise ConfigurationError(
            "--state: a buffered run has no point at which no client works, so it has no checkpoint",
            check="without-rounds",
        )
    parts = {"fedcore": fedcore_version(), **options, "settings": sorted(settings.to_mapping().items())}
    return {name: hashlib.sha256(repr(part).encode()).hexdigest() for name, part in parts.items()}


def _secret_of(path: Path, identity: Mapping[str, str]) -> bytes:
    """The secret of the run that the folder is of; a new run begins in it if it is of none."""
    file = path / RUN_FILE
    if not file.exists():
        if any(entry for entry in path.iterdir() if not _is_of_beginning(entry)):
            raise ConfigurationError(
                f"--state: {path} is not empty and is not a simulation checkpoint", check="other-content"
            )
        return _begin(path, identity)
    try:
        saved = json.loads(file.read_text())
        secret, before, form = bytes.fromhex(saved["secret"]), dict(saved["what"]), saved.get("format", 1)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"--state: {file} cannot be read: {error!r}") from None
    if form != FORMAT:
        raise ConfigurationError(
            f"--state: another version of fedcore wrote {path}, and this one cannot read it: its format is {form}, not "
            f"{FORMAT}. Name another folder, or go on with the fedcore that began the run",
            check="other-format",
        )
    if not (differs := [name for name in {**before, **identity} if before.get(name) != identity.get(name)]):
        return secret
    if _has_no_exchange(path / "steps"):
        return _begin(path, identity)
    raise ConfigurationError(
        f"--state: {path} holds another run: {', '.join(differs)} differ. Name another folder, or resume the "
        "run with the options, and the fedcore, that it began with",
        check="other-run",
    )


def _is_of_beginning(entry: Path) -> bool:
    """Whether a process that was killed while it began a run left this."""
    is_folder = entry.name == "steps" and entry.is_dir()
    return entry.name.startswith(f".{RUN_FILE}.") or (is_folder and not any(entry.iterdir()))


def _begin(path: Path, identity: Mapping[str, str]) -> bytes:
    shutil.rmtree(path / "steps", ignore_errors=True)
    (path / "steps").mkdir()
    secret = secrets.token_bytes(32)
    write_file(
        path / RUN_FILE,
        json.dumps({"format": FORMAT, "secret": secret.hex(), "what": dict(identity)}),
        mode=0o600,
        durable=True,
    )
    return secret


def _has_no_exchange(steps: Path) -> bool:
    """Whether a run ended before its first exchange, since it was refused, say."""
    requests = (json.loads(file.read_text())["request"] for file in steps.glob("*.json"))
    return all(request["op"] == "nodes" for request in requests)
