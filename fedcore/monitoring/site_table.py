"""The sites of a run as a live table: state of each, what it waits for, bytes moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Final

from rich.table import Table
from rich.text import Text

from fedcore.monitoring.formatting import size
from fedcore.system.terminal import escape
from fedcore.wire.events import (
    AttemptEnd,
    ClientBlamed,
    ClientDropped,
    ClientsOnline,
    ExchangeDone,
    ExchangeStarted,
    RunEvent,
)
from fedcore.wire.operator import ClientRunState, RunClientOut

MOST_ROWS: Final = 16
_NARROW: Final = 64
"""Columns of a terminal below which bytes are left out."""
_COLOURS: Final = {"blamed": "red", "dropped": "yellow", "away": "yellow", "training": "cyan", "done": "green"}
_FIRST: Final = ("blamed", "dropped", "away", "training", "uploading", "asked", "waiting", "done", "online")
"""In a table that is too long, those first that somebody may have to look after."""


@dataclass(slots=True)
class Site:
    """One client.

    why: what it waits for, or for what reason it dropped out.
    up, down: bytes of the run so far.
    """

    state: str = "online"
    why: str = ""
    up: int = 0
    down: int = 0


class SiteTable:
    """All clients that the run's events name; a thread may draw it while another one tells it more."""

    def __init__(self) -> None:
        self.sites: dict[str, Site] = {}
        self._lock = Lock()

    def follow(self, event: RunEvent) -> None:
        """Take an event of the run."""
        with self._lock:
            self._follow(event)

    def _follow(self, event: RunEvent) -> None:
        match event:
            case ClientsOnline():
                self._come_and_go(event)
            case ExchangeStarted():
                for name in self.sites.keys() | set(event.cohort):
                    selected = name in event.cohort
                    self._set(name, "asked" if selected else "waiting", "" if selected else "not asked this time")
            case ClientDropped():
                self._set(event.client, "dropped", f"{event.stage}: {event.reason}")
            case ClientBlamed():
                self._set(event.client, "blamed", f"{event.stage}: {event.reason}")
            case ExchangeDone():
                for name in event.survivors:
                    self._set(name, "done", "")
        if isinstance(event, AttemptEnd):
            for name, site in self.sites.items():
                site.up += event.bytes_up.get(name, 0)
                site.down += event.bytes_down.get(name, 0)

    def hear(self, clients: Iterable[RunClientOut]) -> None:
        """Take what the server says of the clients now, which is more than the events do."""
        with self._lock:
            for client in clients:
                site = self.sites.setdefault(client.name, Site())
                if site.state != "blamed" and not (client.state is ClientRunState.WAITING and site.state == "done"):
                    site.state, site.why = client.state.value, client.why

    def render(self, *, rows: int, width: int) -> Table | None:
        """The table, at most `rows` lines below its heading; None if no client is known."""
        if not self.sites or rows < 1:
            return None
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("site", no_wrap=True, overflow="ellipsis", max_width=max(width // 3, 8))
        table.add_column("state", no_wrap=True)
        table.add_column("waits for", no_wrap=True, overflow="ellipsis")
        wide = width >= _NARROW
        for name in ("sent", "received") if wide else ():
            table.add_column(name, no_wrap=True, justify="right")
        with self._lock:
            names, rest = self._chosen(rows)
        for name, site in names:
            colour = _COLOURS.get(site.state, "default")
            traffic = (_size(site.up), _size(site.down)) if wide else ()
            table.add_row(escape(name), f"[{colour}]{site.state}[/]", escape(site.why), *traffic)
        if rest:
            counts = Counter(site.state for site in rest)
            table.add_row(f"{len(rest)} more", "", ", ".join(f"{count} {state}" for state, count in counts.items()))
        return table

    def sums(self) -> tuple[dict[str, int], int, int]:
        """How many clients are in which state, and the bytes that all of them sent and received."""
        with self._lock:
            sites = list(self.sites.values())
        counts = Counter(site.state for site in sites)
        return dict(counts.most_common()), sum(site.up for site in sites), sum(site.down for site in sites)

    def _come_and_go(self, event: ClientsOnline) -> None:
        for name in event.online:
            if name not in self.sites or self.sites[name].state == "away":
                self._set(name, "online", "")
        for name in event.absent:
            self._set(name, "away", "to join")

    def _set(self, name: str, state: str, why: str) -> None:
        site = self.sites.setdefault(name, Site())
        if site.state != "blamed":  # it is asked no more in this run
            site.state, site.why = state, why

    def _chosen(self, rows: int) -> tuple[list[tuple[str, Site]], list[Site]]:
        """Which clients have a line of their own, by name, and the others."""
        names = sorted(self.sites, key=_by_number)
        if len(names) <= rows:
            return [(name, self.sites[name]) for name in names], []
        urgent = sorted(names, key=lambda name: _FIRST.index(self.sites[name].state))
        visible = set(urgent[: rows - 1])
        chosen = [(name, self.sites[name]) for name in names if name in visible]
        return chosen, [self.sites[name] for name in urgent[rows - 1 :]]


def in_sum(table: SiteTable) -> Text:
    """All clients in one line, where a table of them would tell nobody anything."""
    states, up, down = table.sums()
    text = ", ".join(f"{count:,} {state}" for state, count in states.items())
    return Text(f"{text}; sent {_size(up)}, received {_size(down)}", style="dim", no_wrap=True, overflow="ellipsis")


def _by_number(name: str) -> tuple[str, int]:
    """client-2 before client-10."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or 0)


def _size(count: int) -> str:
    return size(count) if count else "-"
