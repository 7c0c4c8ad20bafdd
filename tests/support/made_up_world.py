"""A made-up federation, as large as a test or benchmark wants it: what a browser would be told of one.

It has no secrets, no aggregation and no clients.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

RUN = "20261122-heart-7f3a"
PLACES = (
    *(
        "Aachen",
        "Bergen",
        "Coimbra",
        "Delft",
        "Erlangen",
        "Florence",
        "Ghent",
        "Helsinki",
        "Innsbruck",
        "Jena",
        "Kaunas",
    ),
    *("Leuven", "Malmö", "Nantes", "Oulu", "Porto"),
)
BEGAN = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)


@dataclass(slots=True, kw_only=True)
class World:
    """What there is to see. done: rounds that are over when the world begins; each has a training and an evaluation."""

    clients: int = 12
    planned: int = 40
    done: int = 23
    aggregation: str = "secure"
    status: str = "running"
    private: bool = True
    draw: random.Random = field(default_factory=lambda: random.Random(7))
    rounds: list[dict[str, Any]] = field(default_factory=list)
    exchanges: list[tuple[int, str, list[str]]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)
    stage: str = "input"
    arrived: int = 0

    def __post_init__(self) -> None:
        self.add({"kind": "started", "app": "heart-app", "aggregation": self.aggregation, "rounds": self.planned})
        for _ in range(self.done):
            self.end_round()
        if self.status == "running":
            self.open_exchange("train")
            self.arrive(self.clients // 3)

    @property
    def names(self) -> list[str]:
        """Hospitals while there are few, numbers from then on."""
        if self.clients <= len(PLACES):
            return [f"Hospital {place}" for place in PLACES[: self.clients]]
        return [f"site-{number:04}" for number in range(1, self.clients + 1)]

    def add(self, event: dict[str, Any]) -> None:
        """Something happened."""
        seconds = 14.2 * len(self.rounds) + 0.01 * len(self.events)
        time = (BEGAN + timedelta(seconds=seconds)).isoformat()
        self.events.append({"seq": len(self.events) + 1, "seconds": seconds, "time": time, "event": event})

    def open_exchange(self, kind: str) -> None:
        """Ask everybody."""
        number = len(self.exchanges) + 1
        self.exchanges.append((number, kind, ["j"] * self.clients))
        self.stage, self.arrived = "input", 0
        server_round = len(self.rounds) + 1
        cohort = self.names
        self.add(
            {
                "kind": "exchange",
                "exchange": number,
                "server_round": server_round,
                "message_type": kind,
                "cohort": cohort,
            }
        )

    def arrive(self, many: int) -> None:
        """Have this many more updates here; one site in fifty drops out."""
        number, _, marks = self.exchanges[-1]
        for at in range(self.arrived, min(self.arrived + many, self.clients)):
            marks[at] = "u"
            if self.draw.random() < 0.02:
                marks[at] = "x"
                reason = "nothing was heard of it for 12 s"
                self.add(
                    {
                        "kind": "dropped",
                        "exchange": number,
                        "client": self.names[at],
                        "stage": "input",
                        "reason": reason,
                    }
                )
        for at in range(min(self.arrived + many, self.clients), self.clients):
            marks[at] = "t" if at % 9 else "j"
        self.arrived = min(self.arrived + many, self.clients)
        self.add(
            {
                "kind": "stage",
                "exchange": number,
                "stage": "input",
                "done": self.arrived,
                "expected": self.clients,
                "seconds": 3.0,
            }
        )

    def end_exchange(self) -> None:
        """Have a sum of all that are here."""
        number, kind, marks = self.exchanges[-1]
        marks[:] = ["d" if mark == "u" else mark for mark in marks]
        names = [name for name, mark in zip(self.names, marks, strict=True) if mark == "d"]
        self.add(
            {
                "kind": "exchange-done",
                "exchange": number,
                "server_round": len(self.rounds) + 1,
                "message_type": kind,
                "survivors": names,
                "bytes_up": dict.fromkeys(names, 52_000),
                "bytes_down": dict.fromkeys(names, 50_000),
            }
        )

    def end_round(self) -> None:
        """A whole round, with an open training exchange or from its beginning."""
        if not self.exchanges or self.exchanges[-1][2].count("d"):
            self.open_exchange("train")
        self.arrive(self.clients)
        self.end_exchange()
        self.open_exchange("evaluate")
        self.arrive(self.clients)
        self.end_exchange()
        n = len(self.rounds) + 1
        here = self.exchanges[-2][2].count("d")
        wobble = self.draw.uniform(-0.012, 0.012)
        self.rounds.append(
            {
                "round": n,
                "seconds": 14.0 + self.draw.uniform(-2, 2),
                "train": {"train_loss": 1.9 * 0.9**n + 0.31 + wobble},
                "evaluate": {"eval_acc": 0.91 - 0.5 * 0.87**n + wobble, "eval_loss": 1.8 * 0.91**n + 0.42 - wobble},
                "up": 52_000 * here,
                "server": {},
                "down": 50_000 * self.clients,
                "epsilon": 0.62 * n**0.5 if self.private else None,
                "cohort": self.clients,
                "survivors": here,
                "dropped": self.clients - here,
            }
        )

    # --- answers ------------------------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """The run that is shown."""
        return {
            "run": RUN,
            "status": self.status,
            "reason": "",
            "aggregation": self.aggregation,
            "app": "heart-app",
            "app_sha256": "5f" * 32,
            "submitted_at": BEGAN.isoformat(),
            "started_at": BEGAN.isoformat(),
            "ended_at": None if self.status == "running" else (BEGAN + timedelta(minutes=9)).isoformat(),
            "rounds": len(self.rounds),
            "epsilon": self.rounds[-1]["epsilon"] if self.rounds else None,
            "position": None,
            "model": {"sha256": "ab" * 32, "size": 51_240} if self.rounds else None,
        }

    def older(self) -> list[dict[str, Any]]:
        """Runs that were before."""
        kinds = (("finished", ""), ("failed", "fewer than 9 of 12 sites answered"), ("cancelled", ""), ("finished", ""))
        return [
            {
                **self.info(),
                "run": f"20261{120 - at}-heart-{at}c1e",
                "status": status,
                "reason": reason,
                "rounds": 40 - 9 * at,
                "started_at": (BEGAN - timedelta(days=at + 1)).isoformat(),
                "ended_at": (BEGAN - timedelta(days=at + 1) + timedelta(minutes=11 + at)).isoformat(),
            }
            for at, (status, reason) in enumerate(kinds)
        ]

    def marks(self, last: int) -> dict[str, Any]:
        """The last exchanges, a line for each client."""
        shown = self.exchanges[-last:]
        lines = zip(*(marks for _, _, marks in shown), strict=True) if shown else [()] * self.clients
        return {
            "exchanges": [number for number, _, _ in shown],
            "kinds": [kind for _, kind, _ in shown],
            "clients": [
                {"name": name, "marks": "".join(line), "gave": self.gave("".join(line))}
                for name, line in zip(self.names, lines, strict=True)
            ],
        }

    def gave(self, marks: str) -> dict[str, int]:
        """What a client with these marks gave."""
        return {"exchanges": marks.count("d"), "update_bytes": 50_000 * marks.count("d")}

    def standings(self) -> dict[str, Any]:
        """What each client does."""
        states = {"j": "training", "t": "training", "u": "done", "d": "done", "x": "dropped"}
        marks = self.exchanges[-1][2] if self.exchanges else ["."] * self.clients
        why = {"x": "nothing was heard of it for 12 s"}
        clients = [
            {"id": at + 1, "name": name, "state": states.get(mark, "waiting"), "why": why.get(mark, "")}
            for at, (name, mark) in enumerate(zip(self.names, marks, strict=True))
        ]
        number = self.exchanges[-1][0] if self.exchanges else 0
        return {
            "run": RUN,
            "exchange": number,
            "server_round": len(self.rounds) + 1,
            "stage": self.stage,
            "groups": 1,
            "clients": clients,
        }

    def members(self) -> dict[str, Any]:
        """The roster."""
        clients = [
            {
                "id": at + 1,
                "name": name,
                "online": at != 4,
                "eligible": at != 6,
                "reports_failures": True,
                "app_sha256": "5f" * 32,
                "last_seen_seconds": 4000.0 if at == 4 else 1.0,
            }
            for at, name in enumerate(self.names)
        ]
        return {"federation": "Heart study", "version": "0.1.0", "roster": 3, "clients": clients}

    def saw(self) -> dict[str, Any]:
        """Noise, noise, and a mean."""
        words, total = ([self.draw.getrandbits(24) for _ in range(32)] for _ in range(2))
        mean = [round(0.04 * (at % 7 - 3) * 0.9 ** (at // 4), 5) for at in range(32)]
        return {"exchange": 1, "client": self.names[1], "bits": 24, "words": words, "sum": total, "mean": mean}

    def terms(self) -> dict[str, Any] | None:
        """Of differential privacy."""
        if not self.private:
            return None
        return {
            "mechanism": "gaussian",
            "noise_multiplier": 1.1,
            "clip_norm": 1.0,
            "metric_bound": 0.0,
            "epsilon_budget": 4.0,
            "delta": 1e-5,
        }

    def charts(self) -> dict[str, Any]:
        """Its rounds."""
        return {
            "rounds": self.rounds,
            "up": sum(each["up"] for each in self.rounds),
            "down": sum(each["down"] for each in self.rounds),
            "planned": self.planned,
            "privacy": self.terms(),
            "promise": "Who runs the server reads sums of all sites, and no site's update.",
            "seq": len(self.events),
        }
