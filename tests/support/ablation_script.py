"""A server that lies to real sessions by a script, and stops where a client refuses to go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from fedcore.secagg import ShareDelivery, Survivors

from .hostile import Game, Player, Tally
from .stories import Setting, Story


class Refused(Exception):
    """A client did not accept what a script shows to it."""


class Script:
    """A server that tells each client its own story; `refusals` are the names of the checks that stopped it."""

    def __init__(self, setting: Setting, corrupt: tuple[int, ...] = (), *, take: int = 1, **options: Any) -> None:
        self.tally = Tally()
        played = frozenset(corrupt)
        self.game = Game(setting, number=1, take=take, corrupt=played, tally=self.tally, strict=False, **options)
        self.games = [self.game]
        self.everybody = setting.ids

    @property
    def refusals(self) -> set[str]:
        """By name."""
        return set(self.tally.refusals)

    def again(self, variant: int) -> tuple[Script, Story]:
        """The same sessions, as if they had only advertised, and another list of their keys."""
        other = Script(self.game.setting, tuple(self.game.corrupt), take=variant + 1)
        for i, player in other.game.players.items():
            player.session, player.advertisement = self.game.players[i].session, self.game.players[i].advertisement
        other.tally = other.game.tally = self.tally
        self.games.append(other.game)
        return other, other.game.tell(variant=variant)

    def send(self, player: Player, step: str, message: object, story: Story | None = None) -> None:
        """Refused if the client does not accept it."""
        if not self.game.attempt(player, step, message, story):
            raise Refused

    def list_keys(self, story: Story, clients: tuple[int, ...] = ()) -> None:
        """R1, the first half."""
        for player in self.players(clients):
            self.send(player, "share_keys", story.cohort_for(player.client_id), story)

    def deliver(self, messages: Mapping[int, ShareDelivery], story: Story, clients: tuple[int, ...] = ()) -> None:
        """R1, the second half, and R2; who is not in `messages` hears of everybody."""
        for player in self.players(clients):
            own = player.client_id
            self.send(player, "receive_shares", messages.get(own, story.delivery(own, self.everybody)))
        for player in self.players(clients):
            self.game.mask(player)

    def name(self, survivors: Mapping[int, tuple[int, ...]], clients: tuple[int, ...] = ()) -> None:
        """R3; who is not in `survivors` hears of everybody."""
        for player in self.players(clients):
            named = tuple(sorted(survivors.get(player.client_id, self.everybody)))
            self.send(player, "sign_survivors", Survivors(named))

    def collect(self) -> None:
        """R4, with every signature that there is; those that refuse are not asked again."""
        for player in self.players():
            self.game.attempt(player, "unmask", self.game.signature_set(player))

    def players(self, clients: tuple[int, ...] = ()) -> list[Player]:
        """Honest clients, all by default."""
        return [player for i, player in self.game.players.items() if not clients or i in clients]


def stopped(attack: Callable[[Script], None], script: Script) -> Script:
    """The script after the attack, or where a client refused to go on."""
    with contextlib.suppress(Refused):
        attack(script)
    return script
