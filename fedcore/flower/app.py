"""A Flower app as files, none of which is run here: what its pyproject.toml says, and one hash over all of them.

A client agrees to run the app with a given hash, the operator submits the app with that hash, and both compute it from
the folder alone: SHA-256 over the sorted, length-prefixed paths and contents.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from fedcore.errors import AppError
from fedcore.flower.node.keys import NodeKeys, node_keys
from fedcore.run.settings import JobSettings
from fedcore.system.assignments import flat
from fedcore.system.files import remove_tree
from fedcore.wire.base import Scalar

if TYPE_CHECKING:
    from fedcore.data.tables import TableSchema

_REFERENCES = ("predictor", "example-input")
SIMULATION_CLIENTS: Final = 10


ReadSettings: TypeAlias = Callable[[Mapping[str, Any], str], JobSettings]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerApp:
    """A Flower app in a folder.

    serverapp, clientapp: object references, `module:attribute`.
    run_config: `[tool.flwr.app.config]` with nested keys joined by dots, as Flower does.
    settings: `[tool.fedcore]`, which Flower ignores.
    statistics: the table `[tool.fedcore.statistics]`, what `fedcore stats` asks for by default; `schema`, the name of a
        table's schema in the folder, has become its `bounds` in it.
    schema: that name; "" for none.
    plan: the name of its study plan in the folder, `plan` in that table; "" for none (fedcore/flower/columns/plan.py).
    predictor, example_input: object references of `[tool.fedcore]`, what `fedcore predict` and `fedcore export` call
        (fedcore/flower/apps/trained.py); "" for none.
    metrics: the table `[tool.fedcore.metrics]`, what each metric of the app's own evaluation is, in a sentence.
    simulation_clients: how many clients `fedcore simulate` has by default, `[tool.fedcore] simulation-clients`.
    node_keys: the table `[tool.fedcore.node]`, what the app asks for of its node.
    """

    folder: Path
    name: str
    serverapp: str
    clientapp: str
    run_config: Mapping[str, Scalar]
    settings: JobSettings
    statistics: Mapping[str, Any] = field(default_factory=dict)
    predictor: str = ""
    example_input: str = ""
    simulation_clients: int = SIMULATION_CLIENTS
    metrics: Mapping[str, str] = field(default_factory=dict)
    node_keys: NodeKeys = field(default_factory=dict)
    schema: str = ""
    plan: str = ""

    def table_schema(self) -> TableSchema | None:
        """The columns of the app's table, None if it does not name them; raises what `TableSchema.load` does."""
        from fedcore.data.tables import TableSchema

        return TableSchema.load(self.folder / self.schema) if self.schema else None

    @classmethod
    def load(cls, folder: Path, *, settings_of: ReadSettings | None = None) -> Self:
        """Read `folder`/pyproject.toml; raises AppError, UnknownKey or ConfigurationError.

        Args:
            settings_of: makes settings of the table `[tool.fedcore]` and its place, for a caller that collects what is
                wrong there.
        """
        document = _read(folder / "pyproject.toml")
        tool = document.get("tool", {})
        flower = tool.get("flwr", {}).get("app")
        if not isinstance(flower, dict):
            raise AppError(
                f"{folder} is not a Flower app: its pyproject.toml has no [tool.flwr.app] table", check="not-an-app"
            )
        components = flower.get("components", {})
        settings = dict(tool.get("fedcore", {}))
        question = settings.pop("statistics", {})
        statistics = _statistics(question, folder)
        metrics = _meanings(settings.pop("metrics", {}), folder)
        keys = node_keys(settings.pop("node", {}), folder)
        simulation_clients = settings.pop("simulation-clients", SIMULATION_CLIENTS)
        if type(simulation_clients) is not int or simulation_clients < 1:
            raise AppError(
                f"simulation-clients in [tool.fedcore] of {folder}/pyproject.toml must be a number from 1 on"
            )
        references = {key.replace("-", "_"): _own_reference(settings, key, folder) for key in _REFERENCES}
        return cls(
            folder=folder.resolve(),
            name=str(document.get("project", {}).get("name", folder.resolve().name)),
            serverapp=_reference(components, "serverapp", folder),
            clientapp=_reference(components, "clientapp", folder),
            run_config=_scalars(flower.get("config", {})),
            settings=(settings_of or _settings)(settings, f"[tool.fedcore] of {folder}/pyproject.toml"),
            statistics=statistics,
            simulation_clients=simulation_clients,
            metrics=metrics,
            node_keys=keys,
            schema=str(question.get("schema", "")),
            plan=str(question.get("plan", "")),
            **references,
        )


def _settings(values: Mapping[str, Any], where: str) -> JobSettings:
    return JobSettings.from_mapping(values, where=where)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AppError(f"{path.parent} is not a Flower app: it has no pyproject.toml", check="not-an-app") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AppError(f"{path} cannot be read as TOML: {error}", check="not-toml") from None


def _reference(components: Mapping[str, Any], key: str, folder: Path) -> str:
    reference = components.get(key)
    if not isinstance(reference, str) or reference.count(":") != 1:
        raise AppError(f"{folder}/pyproject.toml needs {key} = 'module:attribute' in [tool.flwr.app.components]")
    return reference


def _statistics(table: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """The table without its plan, and with the bounds of the schema that it names in place of the name."""
    others = {key: value for key, value in table.items() if key not in ("schema", "plan")}
    if "schema" not in table:
        return others
    from fedcore.data.tables import TableSchema

    if "bounds" in table:
        raise AppError(f"[tool.fedcore.statistics] of {folder}/pyproject.toml names a schema and bounds; leave one out")
    return {**others, "bounds": TableSchema.load(folder / str(table["schema"])).bounds}


def _meanings(table: Any, folder: Path) -> dict[str, str]:
    """The table of metrics: a sentence for each name."""
    if not isinstance(table, Mapping) or not all(isinstance(text, str) and text.strip() for text in table.values()):
        raise AppError(
            f"[tool.fedcore.metrics] of {folder}/pyproject.toml says in a sentence what each metric is, as in "
            'eval_auc = "area under the ROC curve, mean over the sites"',
            check="metric-meanings",
        )
    return {name: " ".join(text.split()) for name, text in table.items()}


def _own_reference(settings: dict[str, Any], key: str, folder: Path) -> str:
    """Takes a reference out of `[tool.fedcore]`, "" if there is none."""
    reference = settings.pop(key, "")
    if not isinstance(reference, str) or (reference and reference.count(":") != 1):
        raise AppError(f"{key} in [tool.fedcore] of {folder}/pyproject.toml must be 'module:attribute'")
    return reference


def _scalars(table: Mapping[str, Any]) -> dict[str, Scalar]:
    values = dict(flat(table))
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str):
            raise AppError(f"run config {key!r} must be a bool, int, float or string")
    return values


MAX_BYTES = 32 * 2**20
_DOMAIN = b"fedcore/app/v1"
_COMPILED = (".so", ".pyd", ".dylib", ".pyc", ".pyo")


@dataclass(frozen=True, slots=True)
class AppBundle:
    """The files of an app: POSIX path relative to its folder -> content.

    What is hashed, what a person reads and what is imported are the same bytes: user code runs from a copy that
    `write` or `install` made, never from the folder that they were read from.
    """

    files: Mapping[str, bytes]

    def __post_init__(self) -> None:
        if "pyproject.toml" not in self.files:
            raise AppError("the app has no pyproject.toml")
        if sum(map(len, self.files.values())) > MAX_BYTES:
            largest = max(self.files, key=lambda path: len(self.files[path]))
            raise AppError(
                f"the app's files are larger than {MAX_BYTES >> 20} MiB; keep data out of its folder (the largest file "
                f"is {largest})"
            )
        for path in self.files:
            _check_path(path)

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read an app's folder: every file, but for hidden ones, `__pycache__` and `*.egg-info`, which never run.

        Raises AppError for a folder that is no app, a symbolic link, a compiled file, and more than MAX_BYTES.
        """
        if not (folder / "pyproject.toml").is_file():
            raise AppError(f"{folder} is not a Flower app: it has no pyproject.toml", check="not-an-app")
        return cls(_read_files(folder, _is_left_out))

    @classmethod
    def from_copy(cls, folder: Path) -> Self:
        """Read what `write` wrote; raises AppError for anything else in the folder too."""
        return cls(_read_files(folder, lambda name: False))

    @property
    def sha256(self) -> str:
        """The app's hash, lower-case hex."""
        digest = hashlib.sha256(_DOMAIN)
        for path in sorted(self.files):
            for part in (path.encode(), self.files[path]):
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()

    def write(self, folder: Path) -> None:
        """Write the files below `folder`, which must not exist yet, for its owner alone and to read only.

        Folders stay writable, for `rm -rf`: `from_copy` finds files that were added to them.
        """
        folder.mkdir(parents=True)
        for path, content in self.files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        for current, _, names in os.walk(folder):
            for name in names:
                os.chmod(os.path.join(current, name), 0o400)
            os.chmod(current, 0o700)

    def install(self, parent: Path) -> Path:
        """A folder in `parent`, named by the hash, with these files and no others; copies of other apps are removed."""
        folder = parent / self.sha256
        for other in parent.iterdir() if parent.is_dir() else ():
            if other != folder or not _holds(folder, self.sha256):
                remove_tree(other)
        if not folder.exists():
            draft = parent / f"{self.sha256}.part"
            self.write(draft)
            draft.rename(folder)
        return folder


def _holds(folder: Path, sha256: str) -> bool:
    try:
        return AppBundle.from_copy(folder).sha256 == sha256
    except (AppError, OSError):
        return False


def _read_files(folder: Path, left_out: Callable[[str], bool]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    size = 0
    for path in _walk(folder, left_out):
        if path.is_symlink() or not path.is_file():
            raise AppError(
                f"{path} is a link or a special file, which the app's hash cannot cover; put a copy of the file there, "
                "or move it out of the app's folder",
                check="link-in-app",
            )
        if path.suffix in _COMPILED:
            raise AppError(
                f"{path} is compiled code, which nobody can read before agreeing to it; move it out of the app's "
                "folder, and install it as a package next to fedcore if the app needs it",
                check="compiled-code",
            )
        size += path.stat().st_size
        if size > MAX_BYTES:
            raise AppError(
                f"{path} takes the app's folder over {MAX_BYTES >> 20} MiB; keep data out of it, and name their folder "
                "with --data-dir",
                check="app-too-large",
            )
        files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def _walk(folder: Path, left_out: Callable[[str], bool]) -> Iterator[Path]:
    """All files below, and folders that are links."""
    for current, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if not left_out(name))
        links = [name for name in folders if os.path.islink(os.path.join(current, name))]
        for name in (*links, *sorted(names)):
            if not left_out(name):
                yield Path(current) / name


def _is_left_out(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__" or name.endswith(".egg-info")


def _check_path(path: str) -> None:
    """Refuse what could leave the folder when written, what `from_folder` leaves out, and compiled code."""
    parts = PurePosixPath(path).parts
    unsafe = not parts or path.startswith("/") or "\\" in path or "\0" in path or not path.isprintable()
    hidden = any(_is_left_out(part) for part in parts)  # ".." among them
    if unsafe or hidden or PurePosixPath(path).as_posix() != path or PurePosixPath(path).suffix in _COMPILED:
        raise AppError(f"the app holds a file with a path that is not allowed: {path!r}", check="app-path")
