"""Findings of a check: errors, which a deployment would also report, and warnings."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any

from fedcore.errors import FedcoreError, ProtocolViolation
from fedcore.federation.admission.refusals import refused_by_all
from fedcore.monitoring.line_speed import RoundTime
from fedcore.run.room import room_line


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    about: where, in a word or two.
    text: in the words of a deployment, with what to do.
    """

    about: str
    text: str

    def __str__(self) -> str:
        return f"{self.about}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckReport:
    """What `fedcore.check` found.

    app: its name.
    clients: among how many it was checked.
    errors: what a run would be refused for, or fail with.
    warnings: what a person should know.
    facts: the model's tensors, parameters and bytes, what one client sends in a round, and of a large model the memory
        and the disk that the parties need, as far as the check came to know them.
    times: of the first round and of a later one, what the line of one client adds to its training time; empty if no
        line was given.
    """

    app: str
    clients: int
    errors: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    times: Mapping[str, RoundTime] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there are no errors."""
        return not self.errors

    def to_plain(self) -> dict[str, Any]:
        """The report as plain JSON."""
        errors, warnings = (
            [{"about": one.about, "text": one.text} for one in findings] for findings in (self.errors, self.warnings)
        )
        return {
            "app": self.app,
            "clients": self.clients,
            "ok": self.ok,
            "errors": errors,
            "warnings": warnings,
            "facts": dict(self.facts),
            "times": {which: time.to_plain() for which, time in self.times.items()},
        }

    def rounds(self) -> list[str]:
        """What the line adds to each round, one in a line."""
        return [f"{which:<12} {time} in addition to the training" for which, time in self.times.items()]

    def headline(self) -> str:
        """All of it in one line."""
        if self.ok and not self.warnings:
            return f"{self.app}: nothing found that would go wrong among {self.clients} clients"
        counts = [
            f"{len(findings)} {word}{'' if len(findings) == 1 else 's'}"
            for findings, word in ((self.errors, "error"), (self.warnings, "warning"))
            if findings
        ]
        return f"{self.app}: {' and '.join(counts)} among {self.clients} clients"

    @property
    def room(self) -> str:
        """What memory and disk a large model takes, in a sentence; "" for a small one."""
        return room_line(self.facts)

    def __repr__(self) -> str:
        lines = [f"size     {self.room}"] if self.room else []
        lines += [f"error    {one}" for one in self.errors] + [f"warning  {one}" for one in self.warnings]
        return "\n".join([self.headline(), *lines, *self.rounds()])

    def _repr_html_(self) -> str:
        rows = [("error", one) for one in self.errors] + [("warning", one) for one in self.warnings]
        items = "".join(
            f"<li><strong>{kind}</strong> {escape(one.about)}: {escape(one.text)}</li>" for kind, one in rows
        )
        return (
            f'<div class="fedcore-result"><div><strong>{escape(self.headline())}</strong></div><ul>{items}</ul></div>'
        )


@dataclass(slots=True)
class Findings:
    """Collects what is found; the same text counts once.

    folder: of the app, whose lines are named.
    """

    folder: Path | None = None
    errors: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)

    def error(self, about: str, text: str) -> None:
        """Note what a run would be refused for, or fail with."""
        if text not in [one.text for one in self.errors]:
            self.errors.append(Finding(about, text))

    def warn(self, about: str, text: str) -> None:
        """Note what a person should know."""
        if text not in [one.text for one in (*self.errors, *self.warnings)]:
            self.warnings.append(Finding(about, text))

    def expecting(self, about: str) -> _Expecting:
        """Note what a block raises, and go on after it; the app's own code may raise anything."""
        return _Expecting(self, about)

    def take(self, about: str, error: BaseException) -> bool:
        """Note an error, if it is one of the app or of what a person set; whether it is."""
        match error:
            case ProtocolViolation():
                self.error(about, refused_by_all([error]))
            case FedcoreError():
                for line in str(error).splitlines():
                    self.error(about, line)
            case Exception() | SystemExit():
                self.error(about, f"{type(error).__name__}: {error}{self._location(error)}")
            case _:
                return False
        return True

    def _location(self, error: BaseException) -> str:
        """(client_app.py:12), the app's last line that led to an error; empty if none did."""
        if self.folder is None:
            return ""
        lines = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename).is_relative_to(self.folder)
        ]
        if not lines:
            return ""
        return f" ({Path(lines[-1].filename).relative_to(self.folder)}:{lines[-1].lineno})"


@dataclass(frozen=True, slots=True)
class _Expecting:
    findings: Findings
    about: str

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        return error is not None and self.findings.take(self.about, error)
