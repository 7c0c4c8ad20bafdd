"""Apps given in Python: a folder, or objects that live in this process alone.

An object becomes an app like any other, by a module that only this process knows. Its hash covers no code, so no owner
could agree to it, and no other process could load it: it is for simulations.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final, TypeAlias

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedcore.errors import AppError, UnknownKey
from fedcore.flower.app import FlowerApp
from fedcore.run.settings import ROUNDS_KEY, JobSettings
from fedcore.system.files import private_folder
from fedcore.wire.base import Scalar

Pair: TypeAlias = tuple[ClientApp, ServerApp]
AppLike: TypeAlias = str | Path | FlowerApp | ClientApp | Pair | Callable[[], "ClientApp | Pair"]
"""The folder of an app; what `supervised_app` or `local_app` returned; a ClientApp with its ServerApp; or a function
without arguments that makes one of the latter two."""

READY_CONFIG: Final[Mapping[str, Scalar]] = {
    ROUNDS_KEY: 3,
    "min-nodes": 1,
    "local-epochs": 1,
    "batch-size": 32,
    "seed": 0,
}
"""What `supervised_app` and `averaging_server` read, for an app that has no pyproject.toml to say it."""
READ_TOO: Final = (
    "strategy", "proximal-mu", "server-lr", "server-momentum", "beta-1", "beta-2", "tau", "feddyn-alpha", "clip-first",
    "clip-quantile", "clip-rate", "ditto-lambda", "personal-layers", "freeze", "fraction-train", "fraction-evaluate",
    "local-steps", "patience", "class-weight",
)  # fmt: skip
_NUMBERS: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class LoadedApp:
    """An app that can be loaded now.

    in_memory: it is no folder, so its hash says nothing of its code.
    """

    app: FlowerApp
    in_memory: bool


@contextmanager
def load_app(source: AppLike, run_config: Mapping[str, Scalar]) -> Iterator[LoadedApp]:
    """An app that this process can run until the end of the block; raises AppError or UnknownKey.

    A folder's modules are read again, whatever was imported before, so that an edited app is the one that runs. For
    objects, `run_config` may hold any key, since only their own code knows which it reads.
    """
    if isinstance(source, str | Path | FlowerApp):
        app = source if isinstance(source, FlowerApp) else FlowerApp.load(Path(source).expanduser().absolute())
        with fresh_modules(app):
            yield LoadedApp(app, in_memory=False)
        return
    name, client, server = _parts(source)
    ready = READY_CONFIG if server is None else {}
    _check_spelling(run_config, ready)
    with private_folder() as folder, _module(client, server) as module:
        (folder / "pyproject.toml").write_text(f'[project]\nname = "{module}"\n', encoding="utf-8")
        app = FlowerApp(
            folder=folder,
            name=name,
            serverapp=f"{module}:server",
            clientapp=f"{module}:client",
            run_config={**ready, **run_config},
            settings=JobSettings(),
        )
        yield LoadedApp(app, in_memory=True)


def folder_of(source: AppLike, purpose: str) -> FlowerApp:
    """The app in a folder; raises AppError for objects, which no other process can be handed.

    Args:
        purpose: what needs other processes, as in "a comparison".
    """
    if isinstance(source, FlowerApp):
        return source
    if isinstance(source, str | Path):
        return FlowerApp.load(Path(source).expanduser().absolute())
    raise AppError(
        f"{purpose} runs the app in processes of their own, and a {type(source).__name__} of this process cannot be "
        "handed to them. Write the app into a folder, and name that: `fedcore new NAME` makes one, and in a notebook "
        "`%%writefile` fills its files",
        check="app-in-memory",
    )


def _parts(source: object) -> tuple[str, ClientApp, ServerApp | None]:
    """Name, ClientApp and ServerApp of what was given; None if the ready one is to be used."""
    name = "an app of this process"
    if callable(source) and not isinstance(source, ClientApp | ServerApp):
        name = getattr(source, "__name__", name)
        source = source()
    if isinstance(source, tuple) and len(source) == 2:
        client, server = source
        if isinstance(client, ClientApp) and isinstance(server, ServerApp):
            return name, client, server
    from fedcore.flower.apps.engine_app import LocalApp

    if isinstance(source, LocalApp):
        return name, source, None
    if isinstance(source, ClientApp):
        raise AppError(
            "a ClientApp alone says nothing of the strategy; give the pair (client_app, server_app)",
            check="server-app-needed",
        )
    raise AppError(
        f"an app is the path of its folder, what supervised_app or local_app returns, or a pair (ClientApp, "
        f"ServerApp), or a function that makes one of these; not a {type(source).__name__}",
        check="not-an-app",
    )


def _check_spelling(values: Mapping[str, Scalar], ready: Mapping[str, Scalar]) -> None:
    """Refuse a known key that is written with underscores, which nothing would read."""
    known = {*ready, *(READ_TOO if ready else ()), ROUNDS_KEY}
    for key in values:
        if key not in known and key.replace("_", "-") in known:
            raise UnknownKey(key, known, "run_config")


@contextmanager
def _module(client: ClientApp, server: ServerApp | None) -> Iterator[str]:
    """The name of a module that holds both for as long as the block lasts."""
    if server is None:
        from fedcore.flower.apps.engine_app import LocalApp
        from fedcore.flower.strategies.registry import averaging_server

        assert isinstance(client, LocalApp)  # noqa: S101 - or there would be a ServerApp
        server = averaging_server(client)
    name = f"fedcore_app_of_this_process_{next(_NUMBERS)}"
    module = ModuleType(name)
    vars(module).update(client=client, server=server)
    sys.modules[name] = module
    try:
        yield name
    finally:
        del sys.modules[name]


@contextmanager
def fresh_modules(app: FlowerApp) -> Iterator[None]:
    """Let the app's modules be imported again, from its folder and from nowhere else, and be forgotten afterwards.

    An app that was edited since it was last imported is otherwise run as it was then, and of two apps whose packages
    have one name the second would be the first.
    """
    roots = {reference.partition(":")[0].partition(".")[0] for reference in (app.serverapp, app.clientapp)}
    displaced = _take_out(roots)
    known, path, writes = set(sys.modules), list(sys.path), sys.dont_write_bytecode
    sys.path.insert(0, str(app.folder))
    sys.dont_write_bytecode = True  # what is compiled within a second of an edit would be taken for newer
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        sys.path[:] = path
        _take_out(roots | {name for name in set(sys.modules) - known if _lies_in(name, app.folder)})
        sys.modules.update(displaced)


def _take_out(roots: set[str]) -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] in roots]
    return {name: sys.modules.pop(name) for name in names}


def _lies_in(name: str, folder: Path) -> bool:
    """Whether a top-level module or package is the app's own file."""
    file = getattr(sys.modules[name], "__file__", None)
    return "." not in name and file is not None and Path(file) in (folder / f"{name}.py", folder / name / "__init__.py")
