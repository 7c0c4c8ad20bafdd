"""What a lying server can work out from all that it has seen, in every round together.

`Knowledge` gathers shares (those released to it, and those sealed for clients that it plays), rebuilds every secret of
which it has enough with fedcore's own `Rebuilder`, tries each secret wherever one of its kind fits, and derives every
mask seed that follows. `recover` then asks which sums of uploads it can strip of all masks. A mask stream whose seed
is unknown is independent of everything else, so that is linear algebra: the uploads are rows, unknown streams are
columns, and what comes out are the combinations of rows that vanish. It is exact: whatever it names is recovered, which
is checked on the vectors themselves, and nothing else can be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fedcore.errors import UnmaskFailed
from fedcore.secagg import Agreement, Secret, apply_masks, dealing
from fedcore.secagg.crypto import schedule, shamir
from fedcore.secagg.crypto.agreement import KeyPair

from .hostile import Broken, Game, Upload
from .stories import WORDS, Drbg, Story

_MODULUS = 2**61 - 1
"""A prime: the masks' coefficients are 1 and -1, so a combination that vanishes modulo it does so over the integers."""

Key = TypeVar("Key")
Owner = tuple[Story, int]
"""Whose secret: an honest client in one story."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A sum of uploads without masks: upload -> coefficient, 1 or -1 where nothing is broken."""

    game: Game
    uploads: tuple[Upload, ...]

    @property
    def clients(self) -> frozenset[int]:
        """Whose updates are in it."""
        return frozenset(upload.client_id for upload in self.uploads)


class Knowledge:
    """Everything that the server of these games knows; `seeds` are the mask seeds among it."""

    def __init__(self, games: Sequence[Game]) -> None:
        self._games = games
        self._self_secrets: dict[Owner, Secret] = {}
        self._pairs: dict[Owner, KeyPair] = {}
        self._rebuild_all()
        self._try_elsewhere()
        self.seeds = frozenset(seed for game in games for story in game.stories for seed in self._seeds(story))

    def _rebuild_all(self) -> None:
        for game in self._games:
            threshold = game.setting.threshold
            of_key, of_self = _shares(game)
            for (story, owner), shares in of_self.items():
                secret = _rebuilt(story, owner, shares, threshold, is_self=True)
                if secret is not None:
                    self._self_secrets[story, owner] = secret
            for (story, owner), shares in of_key.items():
                secret = _rebuilt(story, owner, shares, threshold, is_self=False)
                if secret is not None:
                    self._pairs[story, owner] = KeyPair.from_root(game.setting.agreement, secret)

    def _try_elsewhere(self) -> None:
        """Hold every self secret against every commitment: a client may have used one twice."""
        known = {secret.reveal() for secret in self._self_secrets.values()}
        for game in self._games:
            for story in game.stories:
                for owner, dealt in story.dealt.items():
                    for raw in known:
                        if schedule.commits_to(dealt.commitment, story.transcript.context, owner, Secret(raw)):
                            self._self_secrets[story, owner] = Secret(raw)

    def _seeds(self, story: Story) -> Iterator[bytes]:
        """The seeds of a story's masks, as far as they are known."""
        for owner in story.dealt:
            if (story, owner) in self._self_secrets:
                yield schedule.self_mask(story.transcript, self._self_secrets[story, owner]).seed.reveal()
            for peer in story.graph.neighbours(owner):
                for secret in self._pair_secrets(story, owner, peer):
                    yield schedule.pair_mask(story.transcript, secret, owner=owner, peer=peer).seed.reveal()

    def _pair_secrets(self, story: Story, one: int, other: int) -> Iterator[Secret]:
        """The secret of two neighbours, from the one who chose it and from what was sealed for the other."""
        chooser, receiver = (one, other) if story.graph.chooses(one, other) else (other, one)
        if pair := self._pair(story, chooser):
            yield schedule.pair_secret(story.transcript, pair.root, chooser=chooser, peer=receiver)
        if (pair := self._pair(story, receiver)) and story.can_deal(chooser):
            _, sealed = story.sealed(chooser, receiver)
            public = story.adverts[chooser].s_public
            opened = schedule.open_pair_secret(
                story.transcript, pair, public, sender=chooser, receiver=receiver, sealed=sealed or b""
            )
            if opened is not None:
                yield opened

    def _pair(self, story: Story, client_id: int) -> KeyPair | None:
        actor = story.actors.get(client_id)
        return actor.mask_pair if actor else self._pairs.get((story, client_id))


def recover(games: Sequence[Game]) -> list[Recovered]:
    """Every smallest sum that the server can strip; Broken where one is smaller than the round or a member allows."""
    known = Knowledge(games).seeds
    found: list[Recovered] = []
    for game in games:
        uploads = [upload for player in game.players.values() for upload in player.uploads]
        for relation in relations([_unknown(upload, known) for upload in uploads]):
            found.append(Recovered(game=game, uploads=tuple(uploads[row] for row in relation)))
            _confirm([(uploads[row], factor) for row, factor in relation.items()], known, games)
    for one in found:
        _judge(one)
    return found


def reused_masks(games: Iterable[Game]) -> str:
    """What is wrong with the use of the mask streams, or "": each is in one upload, or in two that cancel it."""
    uses: dict[bytes, list[tuple[Game, int, int]]] = defaultdict(list)
    for game in games:
        for player in game.players.values():
            for upload in player.uploads:
                for term in upload.terms:
                    uses[term.seed.reveal()].append((game, upload.client_id, term.sign))
    for where in uses.values():
        owners, signs = {(id(game), owner) for game, owner, _ in where}, sum(sign for *_, sign in where)
        rounds = {id(game) for game, *_ in where}
        if len(where) > 2 or len(owners) < len(where) or (len(where) == 2 and (signs or len(rounds) > 1)):
            return f"one mask hides vectors of clients {sorted(owner for _, owner, _ in where)}"
    return ""


def relations(rows: Sequence[dict[bytes, int]]) -> list[dict[int, int]]:
    """A basis of the combinations (row -> factor) of sparse rows that vanish, by elimination.

    A row that shares no column with others is never mixed with them, so where each column has at most two entries the
    basis is that of the smallest combinations: the connected sets of uploads without an unknown mask that stands alone.
    """
    pivots: dict[bytes, tuple[dict[bytes, int], dict[int, int]]] = {}
    found: list[dict[int, int]] = []
    for index, row in enumerate(rows):
        rest, made = dict(row), {index: 1}
        while rest:
            column = min(rest)
            if column not in pivots:
                scale = pow(rest[column], -1, _MODULUS)
                pivots[column] = (_scaled(rest, scale), _scaled(made, scale))
                break
            factor = -rest[column]
            pivot, combination = pivots[column]
            rest, made = _added(rest, pivot, factor), _added(made, combination, factor)
        else:
            found.append({key: value if value < _MODULUS // 2 else value - _MODULUS for key, value in made.items()})
    return found


def _scaled(row: dict[Key, int], scale: int) -> dict[Key, int]:
    return {key: value * scale % _MODULUS for key, value in row.items()}


def _added(row: dict[Key, int], other: dict[Key, int], factor: int) -> dict[Key, int]:
    total = {key: (row.get(key, 0) + factor * other.get(key, 0)) % _MODULUS for key in (*row, *other)}
    return {key: value for key, value in total.items() if value}


def _unknown(upload: Upload, known: frozenset[bytes]) -> dict[bytes, int]:
    row: dict[bytes, int] = defaultdict(int)
    for term in upload.terms:
        if term.seed.reveal() not in known:
            row[term.seed.reveal()] += term.sign
    return {seed: factor % _MODULUS for seed, factor in row.items() if factor}


def _confirm(relation: Sequence[tuple[Upload, int]], known: frozenset[bytes], games: Sequence[Game]) -> None:
    """Do it: take the known masks away, add up, and compare with the vectors themselves."""
    total, truth = np.zeros(WORDS, np.uint64), np.zeros(WORDS, np.uint64)
    for upload, factor in relation:
        stripped = upload.masked.copy()
        apply_masks(stripped, [term.inverse() for term in upload.terms if term.seed.reveal() in known])
        total += stripped * np.uint64(factor % 2**64)
        truth += upload.vector * np.uint64(factor % 2**64)
    assert np.array_equal(total, truth), "the solver found a combination that does not vanish"


def _judge(found: Recovered) -> None:
    setting, clients = found.game.setting, sorted(found.clients)
    if len(clients) < setting.quorum - setting.corrupt:
        raise Broken("recovered", f"the server has the sum of clients {clients} alone, the quorum is {setting.quorum}")
    for client in clients:
        floor = found.game.players[client].floor
        if len(clients) < floor - setting.corrupt:
            raise Broken(
                "policy-undercut", f"client {client} demands {floor} clients, the server has that of {clients}"
            )


def _shares(game: Game) -> tuple[dict[Owner, dict[int, bytes]], dict[Owner, dict[int, bytes]]]:
    """Owner -> point -> share, of mask roots and of self secrets."""
    of_key: dict[Owner, dict[int, bytes]] = defaultdict(dict)
    of_self: dict[Owner, dict[int, bytes]] = defaultdict(dict)
    for player in game.players.values():
        for released in player.released:
            assert player.story is not None
            for into, shares in ((of_key, released.key_shares), (of_self, released.self_shares)):
                for owner, share in shares.items():
                    into[player.story, owner][player.story.graph.point(owner, player.client_id)] = share
    for story in game.stories:
        for owner, dealt in story.dealt.items():
            for receiver, sealed in dealt.shares.items():
                text = _opened(story, owner, receiver, sealed)
                if text is not None:
                    point = story.graph.point(owner, receiver)
                    of_key[story, owner][point] = text[: shamir.SHARE_BYTES]
                    of_self[story, owner][point] = text[shamir.SHARE_BYTES :]
    return of_key, of_self


def _opened(story: Story, owner: int, receiver: int, sealed: bytes) -> bytes | None:
    """Shares that were sealed for a client whom the server plays."""
    actor = story.actors.get(receiver)
    if actor is None:
        return None
    return schedule.open_shares(
        story.transcript,
        actor.seal_pair,
        story.adverts[owner].c_public,
        sender=owner,
        receiver=receiver,
        sealed=dealing.split_parcel(sealed)[1],
    )


def _rebuilt(story: Story, owner: int, shares: dict[int, bytes], threshold: int, *, is_self: bool) -> Secret | None:
    """An honest client's secret, where there are enough shares of it."""
    dealt, advert = story.dealt.get(owner), story.adverts[owner]
    if dealt is None or len(shares) < threshold:
        return None

    def verify(secret: Secret) -> bool:
        if is_self:
            return schedule.commits_to(dealt.commitment, story.transcript.context, owner, secret)
        agreement = next(a for a in Agreement if a.public_bytes == len(advert.s_public))
        return KeyPair.from_root(agreement, secret).public == advert.s_public

    rebuilder = shamir.Rebuilder(threshold=threshold, holders=story.graph.holders, randomness=Drbg("rebuilder"))
    try:
        return rebuilder.rebuild(shares, verify)
    except UnmaskFailed:
        return None
