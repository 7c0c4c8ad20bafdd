"""Whether members reach this server: its line to them may be dead while that to the database is well.

A leader that no member reaches makes way for a server that stands by and that members ask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from server_app.members.presence import Presence


@dataclass(slots=True)
class Reach:
    """Signs of life of any member; times are those of the presence's clock.

    seconds: a member's last sign counts for so long.
    """

    presence: Presence
    seconds: float
    _last_request: float = -math.inf

    def note_request(self) -> None:
        """A member asks this server for something while it stands by."""
        self._last_request = self.presence.clock()

    @property
    def on_standby(self) -> bool:
        """Whether a member asks this server although it stands by."""
        return self.presence.clock() - self._last_request <= self.seconds

    @property
    def holds(self) -> bool:
        """Whether any member reaches this server."""
        return self.on_standby or bool(self.presence.online(self.seconds))
