"""Schedules of a lying server: a state machine for hypothesis whose rules are what such a server can do.

A schedule has one or two rounds of the same clients. Its rules tell clients stories in any order, step by step, with
lies (`lies.LIES`), junk, repetitions and messages out of turn between them. When the rules end, `teardown` drives every
session as far as it goes, in the way that the schedule's `Plan` finds most useful to the server, and lets the solver
look at what it has. In a `steady` schedule no story is false, only single messages are, and all sessions must finish.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fedcore.secagg import Agreement, ClientSession, ClientState, SignatureSet, Survivors

from .adversary import recover, reused_masks
from .hostile import JUNK, Game, Player, Tally
from .lies import LIES, Scene
from .stories import Setting, Story, tightest

FULL = (
    Setting(n=4, quorum=3, degree=3, threshold=3, corrupt=0),
    Setting(n=5, quorum=3, degree=4, threshold=3, corrupt=0),
    Setting(n=5, quorum=4, degree=4, threshold=4, corrupt=1),
    Setting(n=6, quorum=5, degree=5, threshold=4, corrupt=1),
    Setting(n=6, quorum=5, degree=5, threshold=5, corrupt=2),
)
RING = tuple(
    tightest(setting)
    for setting in (
        Setting(n=12, quorum=7, degree=4, threshold=4, corrupt=0),
        Setting(n=14, quorum=8, degree=6, threshold=5, corrupt=1),
        Setting(n=16, quorum=10, degree=6, threshold=5, corrupt=2),
    )
)
HYBRID = (
    replace(FULL[0], agreement=Agreement.HYBRID),
    replace(RING[0], agreement=Agreement.HYBRID),
)
SETTINGS = (*FULL, *RING, *FULL, *FULL, *HYBRID)
"""Full graphs more often than rings, ML-KEM seldom: it is what they cost."""

STEP_OF = {
    ClientState.ADVERTISED: "share_keys",
    ClientState.SHARED: "receive_shares",
    ClientState.READY: "mask",
    ClientState.MASKED: "sign_survivors",
    ClientState.SIGNED: "unmask",
}
_GOALS = (None, None, "split", "split", "exclude", "exclude", "isolate", "puppets", "gaps", "gaps")
"""What the server is after: one thing at a time, or it would stand in its own way."""
_NUMBERS = st.integers(0, 2**16 - 1)
_PLAYERS = st.integers(0, 23)
_STEPS = st.sampled_from(sorted({step for step, _ in LIES.values()}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the server is after in one round; sets of clients as bit masks over their ids.

    `excluders` are told that the victim did not survive. `isolates` shows the victim sharers without its neighbours,
    `puppeteer` neighbours that the server plays. `gaps` are two places where it names dropouts: a client on
    the full graph, half a window on a ring, and one with corrupt clients in it where there are some.
    """

    victim: int = 1
    excluders: int = 0
    isolates: bool = False
    puppeteer: bool = False
    gaps: tuple[int, int] | None = None

    def dropouts(self, game: Game, story: Story, client_id: int) -> set[int]:
        """Whom `client_id` is told to have dropped out."""
        gone: set[int] = set()
        if self.excluders >> client_id & 1:
            gone.add(self.victim)
        if self.gaps is not None:
            width, ring = game.setting.degree // 2 if game.setting.sparse else 1, story.ring
            helped = [ring.index(i) for i in sorted(game.corrupt) if i in ring and game.setting.sparse]
            starts = [*(place - gap % width for place, gap in zip(helped, self.gaps, strict=False)), *self.gaps]
            gone |= {ring[(start + step) % len(ring)] for start in starts[:2] for step in range(width)}
            gone -= game.corrupt
        return gone - {client_id}


class LyingServer(RuleBasedStateMachine):
    """See the module. Subclasses exchange the class attributes."""

    settings_of_rounds: ClassVar[Sequence[Setting]] = SETTINGS
    session: ClassVar[type[ClientSession]] = ClientSession
    strict: ClassVar[bool] = True
    """Whether every promise is checked at once; otherwise only what the solver recovers counts."""
    tally: ClassVar[Tally] = Tally()

    def __init__(self) -> None:
        super().__init__()
        self.games: list[Game] = []
        self.plans: list[Plan] = []
        self.gone: set[tuple[int, int]] = set()

    @initialize(
        pick=_NUMBERS,
        shift=_NUMBERS,
        victim=_PLAYERS,
        excluders=_NUMBERS,
        flags=_NUMBERS,
        gaps=_NUMBERS,
        late=st.lists(st.tuples(_NUMBERS, _NUMBERS, _NUMBERS), max_size=6),
    )
    def begin(
        self,
        pick: int,
        shift: int,
        victim: int,
        excluders: int,
        flags: int,
        gaps: int,
        late: list[tuple[int, int, int]],
    ) -> None:
        """The setting, who is corrupt, what the server is after, and lies (client, name, salt) for the end."""
        self.late = late
        self.tally.schedules += 1
        self.setting = self.settings_of_rounds[pick % len(self.settings_of_rounds)]
        ids = self.setting.ids
        self.corrupt = frozenset(ids[(shift + 2 * i) % len(ids)] for i in range(self.setting.corrupt))
        honest = [i for i in ids if i not in self.corrupt]
        self.victim = honest[victim % len(honest)]
        self.steady = self.strict and flags % 4 == 0
        self.min_cohorts = {self.victim: self.setting.n} if flags // 4 % 8 == 7 else {}
        self._begin_round(1, excluders, flags // 32, gaps)

    def _begin_round(self, number: int, excluders: int, flags: int, gaps: int) -> None:
        game = Game(
            self.setting,
            number=number,
            take=len(self.games),
            corrupt=self.corrupt,
            tally=self.tally,
            session=self.session,
            min_cohorts=self.min_cohorts,
            strict=self.strict,
        )
        n, goal = self.setting.n, _GOALS[flags % len(_GOALS)]
        plan = Plan(victim=self.victim)
        if goal == "split":
            plan = replace(plan, excluders=excluders)
        elif goal == "exclude":
            plan = replace(plan, excluders=2 ** (n + 1) - 1)
        elif goal == "gaps":
            plan = replace(plan, gaps=(gaps % n, gaps // n % n))
        elif goal is not None:
            plan = replace(plan, isolates=goal == "isolate", puppeteer=goal == "puppets")
        if self.steady:
            plan = Plan(victim=self.victim)
        game.tell()
        self.games.append(game)
        self.plans.append(plan)

    @precondition(lambda self: len(self.games) == 1)
    @rule(again=st.booleans(), excluders=_NUMBERS, flags=_NUMBERS, gaps=_NUMBERS)
    def another_round(self, again: bool, excluders: int, flags: int, gaps: int) -> None:
        """The next round at the same time, or the same one again with clients that have started anew."""
        self._begin_round(1 if again else 2, excluders, flags, gaps)

    @precondition(lambda self: not self.steady and len(self.games[-1].stories) < 3)
    @rule(left_out=_NUMBERS, few=st.booleans(), puppets=_NUMBERS, variant=st.integers(0, 2))
    def make_up_a_story(self, left_out: int, few: bool, puppets: int, variant: int) -> None:
        """Other keys for the corrupt, puppets in the place of honest clients, clients left out."""
        game = self.games[-1]
        gone = _chosen(left_out & (left_out >> 1) if few else 0, self.setting.ids)
        listed = {*game.players, *self.corrupt} - gone
        if len(listed) <= (self.setting.degree if self.setting.sparse else 1):
            return  # there is no such ring
        game.tell(left_out=gone, puppets=_chosen(puppets & (puppets >> 2), self.setting.ids), variant=variant)

    @rule(which=_NUMBERS, who=_NUMBERS, story=_NUMBERS, omitted=_NUMBERS)
    def go_on(self, which: int, who: int, story: int, omitted: int) -> None:
        """Take some clients one step further; unless the schedule is steady, with what the server likes to say."""
        game, plan = self._round(which)
        order = [*STEP_OF]
        behind = min((order.index(p.session.state) for p in self._present(game) if p.session.state in order), default=0)
        for player in self._present(game):
            # An honest server waits: nobody goes on before all others have come as far.
            early = self.steady and player.session.state is not order[behind]
            if (who | who >> 3) >> player.client_id & 1 and not early:
                told = player.story or game.stories[story // 3 % len(game.stories) if story % 3 == 0 else 0]
                without = set() if self.steady or omitted % 4 else _chosen(omitted & (omitted >> 3), self.setting.ids)
                self._step(game, plan, player, told, without)

    @rule(which=_NUMBERS, who=_PLAYERS, timely=st.booleans(), name=_NUMBERS, salt=_NUMBERS)
    def lie(self, which: int, who: int, timely: bool, name: int, salt: int) -> None:
        """One falsified message to one client, which must refuse it; a timely one is of the kind that it waits for."""
        game, plan = self._round(which)
        player = self._one(game, who)
        if not self.strict or player is None:
            return
        due = STEP_OF.get(player.session.state)
        names = [one for one, (step, _) in LIES.items() if not timely or step == due] or [*LIES]
        self._tell_lie(game, plan, player, names[name % len(names)], salt)

    def _tell_lie(self, game: Game, plan: Plan, player: Player, name: str, salt: int) -> None:
        step, falsify = LIES[name]
        if step == "unmask" and "sign_survivors" not in player.heard:
            return
        story = player.story or game.stories[0]
        elsewhere = tuple(other for other in self.games if other is not game)
        honest = self._message(game, plan, player, step, story, set())
        message = falsify(Scene(game=game, player=player, story=story, message=honest, salt=salt, elsewhere=elsewhere))
        self._must_be_refused(game, player, step, message, name)

    def _tell_late_lies(self, game: Game, plan: Plan, state: ClientState) -> None:
        """Those that were drawn for the end, to clients in `state`: the rules seldom come as far as the last steps."""
        due = [player for player in self._present(game) if player.session.state is state]
        names = [name for name, (step, _) in LIES.items() if step == STEP_OF[state]]
        if self.strict and due and names:
            for who, name, salt in self.late:
                self._tell_lie(game, plan, due[who % len(due)], names[name % len(names)], salt)

    @rule(which=_NUMBERS, who=_PLAYERS, step=_STEPS, place=_NUMBERS, junk=st.sampled_from(range(len(JUNK))))
    def send_junk(self, which: int, who: int, step: str, place: int, junk: int) -> None:
        """A message with one field of the wrong type, length or range."""
        game, plan = self._round(which)
        player = self._one(game, who)
        if not self.strict or player is None:
            return
        honest = self._message(game, plan, player, step, player.story or game.stories[0], set())
        names = [part.name for part in dataclasses.fields(honest)]
        name = names[place % len(names)]
        if getattr(honest, name) != JUNK[junk]:
            message = replace(honest, **{name: JUNK[junk]})
            self._must_be_refused(game, player, step, message, f"junk-in-{step.replace('_', '-')}")

    @rule(which=_NUMBERS, who=_PLAYERS, step=_STEPS)
    def repeat(self, which: int, who: int, step: str) -> None:
        """The identical message again: it gets the identical answer."""
        game, _ = self._round(which)
        player = self._one(game, who)
        if player is not None and step in player.heard:
            self.tally.lies["repetition"] += 1
            if not game.attempt(player, step, player.heard[step][0]):
                raise game.broken("repetition-refused", f"client {player.client_id} did not answer {step} again")

    @rule(which=_NUMBERS, who=_PLAYERS, step=_STEPS)
    def jump_ahead(self, which: int, who: int, step: str) -> None:
        """A message whose turn has not come; and a second vector to mask, where one is masked already."""
        game, plan = self._round(which)
        player = self._one(game, who)
        if player is None:
            return
        if player.uploads:
            self._mask_again(game, player)
        order = [*STEP_OF.values()]
        due = STEP_OF.get(player.session.state)
        if self.strict and due is not None and order.index(step) > order.index(due):
            message = self._message(game, plan, player, step, player.story or game.stories[0], set())
            self._must_be_refused(game, player, step, message, "out-of-turn")

    @precondition(lambda self: not self.steady)
    @rule(which=_NUMBERS, who=_PLAYERS, seldom=st.integers(0, 3))
    def lose(self, which: int, who: int, seldom: int) -> None:
        """A client falls silent for good; seldom, or no round would be left to lie in."""
        game, _ = self._round(which)
        player = self._one(game, who)
        if player is not None and seldom == 3:
            self.gone.add((self.games.index(game), player.client_id))

    def teardown(self) -> None:
        """Take everything as far as it goes, and see what the server has."""
        if any(game.failed for game in self.games):
            return
        for game, plan in zip(self.games, self.plans, strict=True):
            self._drive(game, plan)
            self._ask_twice(game, plan)
        reused = reused_masks(self.games)
        if reused and self.strict:
            raise self.games[0].broken("mask-reused", reused)
        found = recover(self.games)
        self.tally.outcomes["sums the quorum allows"] += len(found)
        for game in self.games:
            self._settle(game, [one.clients for one in found if one.game is game])

    def _settle(self, game: Game, sums: Sequence[frozenset[int]]) -> None:
        """A steady schedule ends like one without lies: all shares are out, and the sum is that of all."""
        finished = all(player.session.state is ClientState.RELEASED for player in game.players.values())
        if finished and frozenset(game.players) in sums:
            self.tally.outcomes["honest completions"] += 1
        elif self.steady and len(game.players) + len(self.corrupt) == self.setting.n:
            raise game.broken(
                "round-lost", "single lies were refused, yet the honest messages did not finish the round"
            )

    def _drive(self, game: Game, plan: Plan) -> None:
        """Step by step; whoever is behind catches up first, since what the server says depends on who is there."""
        victim = game.players.get(plan.victim)
        if plan.puppeteer and victim is not None and victim.session.state is ClientState.ADVERTISED:
            self.tally.lies["puppets"] += 1
            self._step(game, plan, victim, game.tell(puppets=set(game.players) - {plan.victim}), ())
        for state in (ClientState.ADVERTISED, ClientState.SHARED, ClientState.READY, ClientState.MASKED):
            self._tell_late_lies(game, plan, state)
            for player in self._present(game):
                if player.session.state is state:
                    self._step(game, plan, player, player.story or game.stories[0], ())
                if state is ClientState.READY and player.uploads and player.client_id == plan.victim:
                    self._mask_again(game, player)

    def _ask_twice(self, game: Game, plan: Plan) -> None:
        """The end: other survivors once more, then the shares; and again, now that they are out."""
        self._tell_late_lies(game, plan, ClientState.SIGNED)
        self._tell_other_survivors(game, plan)
        for player in self._present(game):
            if player.session.state is ClientState.SIGNED:
                game.attempt(player, "unmask", game.signature_set(player))
        self._tell_other_survivors(game, plan)
        for player in self._present(game):
            if player.released:
                known = game.signature_set(player).signatures
                if known == player.heard["unmask"][0].signatures:
                    known = dict(sorted(known.items())[1:])
                self._try_again(game, player, "unmask", SignatureSet(known))

    def _tell_other_survivors(self, game: Game, plan: Plan) -> None:
        for player in self._present(game):
            if player.story is not None and player.survivors:
                others = set(player.survivors) ^ {plan.victim} | {player.client_id}
                self._try_again(game, player, "sign_survivors", Survivors(tuple(sorted(others))))

    def _mask_again(self, game: Game, player: Player) -> None:
        self.tally.lies["second-vector"] += 1
        game.mask(player)

    def _try_again(self, game: Game, player: Player, step: str, message: Any) -> None:
        if message != player.heard[step][0]:
            self.tally.lies[f"second-{step.replace('_', '-')}"] += 1
            game.attempt(player, step, message)

    def _step(self, game: Game, plan: Plan, player: Player, story: Story, without: Iterable[int]) -> None:
        """The step that is due, with what the server likes to say."""
        step = STEP_OF.get(player.session.state)
        if step == "mask":
            game.mask(player)
        elif step is not None and player.client_id in story.ids:
            message = self._message(game, plan, player, step, story, set(without))
            game.attempt(player, step, message, story)

    def _message(self, game: Game, plan: Plan, player: Player, step: str, story: Story, without: set[int]) -> Any:
        """What an honest server would send if it believed `story`, and `without` had fallen silent."""
        own = player.client_id
        if step == "share_keys":
            return story.cohort_for(own) if own in story.ids else game.stories[0].cohort_for(own)
        if step == "receive_shares":
            if plan.isolates and own == plan.victim:
                self.tally.lies["isolation"] += 1
                without = without | set(story.graph.neighbours(own))
            present = {i for i in story.ids if story.can_deal(i)} - without
            return story.delivery(own, present | {own})
        if step == "sign_survivors":
            there = {p.client_id for p in game.players.values() if p.uploads and p.story is story} | set(story.actors)
            gone = without | plan.dropouts(game, story, own)
            told = (there & set(player.sharers or story.ids)) - gone
            return Survivors(tuple(sorted(told | {own})))
        return game.signature_set(player) if player.survivors else SignatureSet({})

    def _must_be_refused(self, game: Game, player: Player, step: str, message: Any, name: str) -> None:
        if message is None or (step in player.heard and message == player.heard[step][0]):
            return
        self.tally.lies[name] += 1
        if game.attempt(player, step, message):
            raise game.broken("lie-accepted", f"client {player.client_id} answered {step} with {name}")
        if step == "receive_shares" and player.story is not None and player.session.state is ClientState.SHARED:
            game.provoke(player, message, player.story)

    def _round(self, which: int) -> tuple[Game, Plan]:
        index = which % len(self.games)
        return self.games[index], self.plans[index]

    def _present(self, game: Game) -> list[Player]:
        number = self.games.index(game)
        return [player for i, player in game.players.items() if (number, i) not in self.gone]

    def _one(self, game: Game, who: int) -> Player | None:
        players = self._present(game)
        return players[who % len(players)] if players else None


def _chosen(mask: int, ids: Iterable[int]) -> set[int]:
    return {i for i in ids if mask >> i & 1}
