"""Registries of named classes: fedcore's own, those of installed distributions, and those that a program registers.

A distribution declares a class in an entry point of the group `fedcore.strategies`, `fedcore.engines`, `fedcore.modes`
or `fedcore.trackers`. To list names is to read metadata: a class is imported when somebody asks for its name, so that a
broken distribution fails only the commands that use it.
"""

from __future__ import annotations

import contextlib
import functools
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Generic, TypeVar

from fedcore.errors import ConfigurationError, UnknownName

T = TypeVar("T")


def installed(group: str) -> EntryPoints:
    """The entry points of a group; the metadata of all distributions are read once in a process."""
    selected: EntryPoints = _all_entry_points().select(group=group)
    return selected


@functools.cache
def _all_entry_points() -> Any:
    return entry_points()


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a name comes from.

    text: as an error says it.
    target: module and class, "" for one of fedcore's own.
    load: imports the class.
    """

    text: str
    target: str
    load: Callable[[], Any]


class Registry(Mapping[str, T], Generic[T]):
    """Everything of one kind by its name. Iteration gives names and imports nothing; `values` and `items` import all.

    Args:
        kind: what one is called, such as "strategy".
        group: of the entry points.
        where: the option or key by which a person names one.
        built_in: fedcore's own: the thing, or "module:name" of what is imported when it is asked for.
        accept: makes the thing of the name and the class that a plugin brings; raises ConfigurationError for a class
            that is of no use.
        find: gives the entry points of a group.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        built_in: Mapping[str, T | str],
        *,
        where: str,
        accept: Callable[[str, Any], T],
        find: Callable[[str], Iterable[EntryPoint]] = installed,
    ) -> None:
        self.kind = kind
        self.group = group
        self.where = where
        self._built_in = built_in
        self._accept = accept
        self._find = find
        self._registered: dict[str, _Source] = {}
        self._things: dict[str, T] = {}

    def register(self, name: str, plugin: type[Any]) -> None:
        """Add a class of this program; raises ConfigurationError if the name is taken by another one.

        The same class again, as when a cell of a notebook runs twice, replaces the earlier one.
        """
        target = f"{plugin.__module__}:{plugin.__qualname__}"
        source = _Source(f"{target}, which this program registers", target, lambda: plugin)
        earlier = self._registered.get(name)
        others = [earlier] if earlier is not None and earlier.target != target else []
        self._refuse_two(name, [*self._sources(name, source), *others])
        self._registered[name] = source
        self._things.pop(name, None)

    def unregister(self, name: str) -> None:
        """Take back what `register` added, if it did."""
        self._registered.pop(name, None)
        self._things.pop(name, None)

    def __getitem__(self, name: str) -> T:
        """The thing of this name, imported now if it was not before.

        Raises:
            UnknownName: nothing has this name; the error has the nearest one.
            ConfigurationError: two distributions bring it, or the one that does is broken.
        """
        if name not in self._things:
            source = self._source(name)
            self._things[name] = source.load() if not source.target else self._plugin(name, source)
        return self._things[name]

    def check(self, name: str) -> None:
        """Raise UnknownName or ConfigurationError as `[name]` does, but import nothing."""
        self._source(name)

    def usable(self) -> dict[str, T]:
        """All that can be imported, by name; help must not fail because one package is broken."""
        usable = {}
        for name in self:
            with contextlib.suppress(ConfigurationError):
                usable[name] = self[name]
        return usable

    def _source(self, name: str) -> _Source:
        sources = self._sources(name, self._registered.get(name))
        if not sources:
            raise UnknownName(self.kind, name, self, self.where)
        self._refuse_two(name, sources)
        return sources[0]

    def get(self, name: str, default: Any = None) -> Any:
        """As of any mapping, though an unknown name is no KeyError here."""
        if name not in self:
            return default
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._registered or name in self._brought

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._built_in, *sorted([*self._registered, *self._brought])]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    @functools.cached_property
    def _brought(self) -> Mapping[str, list[_Source]]:
        """What distributions bring, by name."""
        brought: dict[str, list[_Source]] = {}
        for entry in self._find(self.group):
            brought.setdefault(entry.name, []).append(
                _Source(_describe(entry), entry.value.replace(" ", ""), entry.load)
            )
        return brought

    def _sources(self, name: str, registered: _Source | None) -> list[_Source]:
        """All that have this name; a class that is declared and registered counts once."""
        sources = [_Source("fedcore itself", "", lambda: self._own(name))] if name in self._built_in else []
        sources += self._brought.get(name, [])
        if registered is not None and registered.target not in {source.target for source in sources}:
            sources.append(registered)
        return sources

    def _own(self, name: str) -> Any:
        thing = self._built_in[name]
        return pkgutil.resolve_name(thing) if isinstance(thing, str) else thing

    def _refuse_two(self, name: str, sources: list[_Source]) -> None:
        if len(sources) > 1:
            both = " and ".join(source.text for source in sources)
            raise ConfigurationError(
                f"{self.kind} {name!r} comes from {both}; uninstall one of them, or rename it", check="plugin-conflict"
            )

    def _plugin(self, name: str, source: _Source) -> T:
        try:
            return self._accept(name, source.load())
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise ConfigurationError(
                f"{self.kind} {name!r} of {source.text} cannot be used: {type(error).__name__}: {reason}; "
                "mend that package, or uninstall it",
                check="broken-plugin",
            ) from error


def _describe(entry: EntryPoint) -> str:
    """The distribution and the entry point, such as `fedcore-decay 0.1 (fedavg-decay = fedavg_decay:FedAvgDecay)`."""
    distribution = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unnamed distribution"
    return f"{distribution} ({entry.group}: {entry.name} = {entry.value})"


def must_derive(plugin: Any, base: type[Any]) -> None:
    """Raise ConfigurationError unless a plugin is a class that derives from `base`."""
    if not (isinstance(plugin, type) and issubclass(plugin, base)):
        raise ConfigurationError(f"{plugin!r} is no class that derives from {base.__module__}.{base.__qualname__}")


def with_methods(*names: str) -> Callable[[str, Any], Any]:
    """For `accept`: any class with these methods, if its base may not be imported yet."""

    def accept(_: str, plugin: Any) -> Any:
        if not isinstance(plugin, type) or not all(callable(getattr(plugin, name, None)) for name in names):
            raise ConfigurationError(f"{plugin!r} is no class with the methods {', '.join(names)}")
        return plugin

    return accept
