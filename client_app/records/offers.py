"""Apps that the federation offers, in the state folder: the owner reads them, and approves one by its hash.

Nothing in here runs or imports any of them. An offer is a set of files whose paths are checked (`AppBundle`), under a
hash that covers all of them; an approval names that hash, and the app that it replaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from pydantic import Field, ValidationError

from fedcore.errors import AppError, ConfigurationError, ProtocolViolation
from fedcore.flower.app import AppBundle
from fedcore.system.files import full_disk_named, remove_tree, write_file
from fedcore.wire.base import Message, Sha256

OFFERS_FOLDER: Final = "offers"
MOST_OFFERS: Final = 4
"""Most offers in the folder; a new one replaces the oldest."""
MOST_FILES: Final = 2000
_APPROVED: Final = "approved.json"
_INSTALLED: Final = "installed.json"
_NAMES: Final = "app-names.json"
MOST_NAMES: Final = 100
"""Apps whose names are remembered; the oldest is forgotten first."""

Record = TypeVar("Record", bound=Message)


class Approval(Message):
    """The owner's agreement to run another app than the one that `--app` names."""

    app: Sha256
    instead_of: Sha256
    """The app that `--app` names."""
    at: float
    """Seconds since 1970."""


class Installed(Message):
    """The apps of the last start of the agent: the one that `--app` names, and the one that runs."""

    named: Sha256
    app: Sha256


class AppNames(Message):
    """The names of apps that ran here, by their hashes, the newest last."""

    names: dict[Sha256, str] = Field(default_factory=dict)


class Offers:
    """The offers to one client. The agent and the owner's commands may use the folder at the same time."""

    def __init__(self, state_dir: Path) -> None:
        self.folder: Final = state_dir / OFFERS_FOLDER
        self._state_dir = state_dir

    def hashes(self) -> list[str]:
        """The offered apps, the oldest first."""
        if not self.folder.is_dir():
            return []
        folders = [path for path in self.folder.iterdir() if path.is_dir() and len(path.name) == 64]
        return [path.name for path in sorted(folders, key=lambda path: (path.stat().st_mtime_ns, path.name))]

    def take(self, sha256: str, files: Mapping[str, bytes]) -> None:
        """Save an app; raises ProtocolViolation if it does not have this hash, or is malformed."""
        try:
            if len(files) > MOST_FILES:
                raise AppError(f"it has more than {MOST_FILES} files")
            bundle = AppBundle(files)
        except AppError as error:
            raise ProtocolViolation("offer-malformed", f"the offered app cannot be saved: {error}") from None
        if bundle.sha256 != sha256:
            raise ProtocolViolation("offer-malformed", "the offered app does not have the announced hash")
        draft = self.folder / f".{sha256[:16]}.part"
        with full_disk_named("no space is left in the state folder for an offered app"):
            if draft.exists():
                remove_tree(draft)
            bundle.write(draft)
            if not (self.folder / sha256).exists():
                draft.rename(self.folder / sha256)
        approved = self.approval()
        spare = [name for name in self.hashes() if approved is None or name != approved.app]
        for old in spare[: max(len(spare) - MOST_OFFERS, 0)]:
            remove_tree(self.folder / old)

    def bundle(self, sha256: str) -> AppBundle:
        """Read the files of an offer, and check them against its hash; raises ConfigurationError."""
        if sha256 not in self.hashes():
            raise ConfigurationError(
                f"no app {sha256} is offered; `fedcore client offers` lists those that are", check="no-offer"
            )
        try:
            bundle = AppBundle.from_copy(self.folder / sha256)
        except (AppError, OSError):
            bundle = None
        if bundle is None or bundle.sha256 != sha256:
            raise ConfigurationError(
                f"{self.folder / sha256} was changed; remove it, and it will be offered again", check="changed"
            )
        return bundle

    def approve(self, sha256: str, *, at: float) -> Approval:
        """Record that the owner agrees to an offer; raises ConfigurationError if there is no such offer."""
        self.bundle(sha256)
        installed = self.installed()
        if installed is None:
            raise ConfigurationError("the agent has not run yet, so there is no app to replace; start it with --app")
        approval = Approval(app=sha256, instead_of=installed.named, at=at)
        write_file(self.folder / _APPROVED, approval.model_dump_json(), mode=0o600, durable=True)
        return approval

    def approval(self) -> Approval | None:
        """The owner's last approval."""
        return _read(self.folder / _APPROVED, Approval)

    def withdraw_approval(self) -> None:
        """Remove the approval."""
        (self.folder / _APPROVED).unlink(missing_ok=True)

    def installed(self) -> Installed | None:
        """The apps of the running agent, or of the last one."""
        return _read(self._state_dir / _INSTALLED, Installed)

    def note_installed(self, named: str, app: str) -> None:
        """Note that the agent runs `app`, while `--app` names `named`."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        write_file(self._state_dir / _INSTALLED, Installed(named=named, app=app).model_dump_json(), mode=0o600)

    def names(self) -> Mapping[str, str]:
        """The names of the apps that ran here, by their hashes."""
        known = _read(self._state_dir / _NAMES, AppNames)
        return known.names if known is not None else {}

    def note_name(self, app: str, name: str) -> None:
        """Remember how an app calls itself that runs here."""
        known = dict(self.names())
        if known.get(app) != name:
            newest = list({**known, app: name}.items())[-MOST_NAMES:]
            write_file(self._state_dir / _NAMES, AppNames(names=dict(newest)).model_dump_json(), mode=0o600)


def _read(path: Path, kind: type[Record]) -> Record | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise ConfigurationError(f"{path} is damaged; remove it") from None
