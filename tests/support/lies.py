"""Single falsified messages that every honest session must refuse, whatever it has heard before.

`LIES` maps a name to (step, function). A function gets a `Scene` and returns the message, or None where the world does
not offer what the lie needs. The honest message that it falsifies is the one that the session waits for, or the one
that it has answered already; both must fail.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from fedcore.secagg import AdvertisedCohort, Advertisement, ShareDelivery, SignatureSet, Survivors
from fedcore.secagg.crypto import schedule
from fedcore.secagg.crypto.keys import sign
from fedcore.secagg.messages import COMMITMENTS_BYTES

from .hostile import Game, Player
from .stories import Actor, Drbg, Story, identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where a lie is told: to `player`, by a server that could also tell it the honest `message`.

    `salt` picks among the variants of a lie; `elsewhere` are the other rounds of the same clients.
    """

    game: Game
    player: Player
    story: Story
    message: Any
    salt: int
    elsewhere: tuple[Game, ...]

    def pick(self, options: Any) -> Any:
        """One of `options` (not empty)."""
        ordered = sorted(options)
        return ordered[self.salt % len(ordered)]

    @property
    def cohort(self) -> AdvertisedCohort:
        """The message, where it is that of share_keys."""
        return cast(AdvertisedCohort, self.message)

    @property
    def delivery(self) -> ShareDelivery:
        """The message, where it is that of receive_shares."""
        return cast(ShareDelivery, self.message)

    @property
    def survivors(self) -> Survivors:
        """The message, where it is that of sign_survivors."""
        return cast(Survivors, self.message)

    @property
    def signatures(self) -> SignatureSet:
        """The message, where it is that of unmask."""
        return cast(SignatureSet, self.message)

    def neighbours(self) -> tuple[int, ...]:
        """Of the player."""
        return self.story.graph.neighbours(self.player.client_id)

    def honest_neighbours(self) -> list[int]:
        """Those of whom the server lacks the identity."""
        return [i for i in self.neighbours() if i in self.game.players]


Lie = Callable[[Scene], Any]
LIES: dict[str, tuple[str, Lie]] = {}


def _lie(step: str) -> Callable[[Lie], Lie]:
    def register(function: Lie) -> Lie:
        LIES[function.__name__.strip("_").replace("_", "-")] = (step, function)
        return function

    return register


def _with_member(cohort: AdvertisedCohort, entry: Advertisement) -> AdvertisedCohort:
    members = {member.client_id: member for member in cohort.members} | {entry.client_id: entry}
    return dataclasses.replace(cohort, members=tuple(members[i] for i in sorted(members)))


def _member(cohort: AdvertisedCohort, client_id: int) -> Advertisement:
    return next(member for member in cohort.members if member.client_id == client_id)


def _signed_by(client_id: int, scene: Scene, c_public: bytes, s_public: bytes) -> Advertisement:
    """What a corrupt client can advertise: keys of its choice under its own good signature."""
    context = scene.game.parameters.ctx()
    statement = schedule.advertisement_statement(context, client_id, c_public, s_public)
    return Advertisement(client_id, c_public, s_public, sign(identity(client_id), statement))


# The list of keys


@_lie("share_keys")
def _own_entry_missing(scene: Scene) -> AdvertisedCohort:
    members = tuple(m for m in scene.cohort.members if m.client_id != scene.player.client_id)
    return dataclasses.replace(scene.cohort, members=members)


@_lie("share_keys")
def _own_keys_exchanged(scene: Scene) -> AdvertisedCohort:
    own = scene.player.client_id
    fake = Actor(own, scene.game.parameters, variant=scene.salt, signs=True).advertisement
    return _with_member(scene.cohort, fake)


@_lie("share_keys")
def _keys_of_another_client(scene: Scene) -> AdvertisedCohort | None:
    near = scene.honest_neighbours()
    if len(near) < 2:
        return None
    stolen = _member(scene.cohort, near[(scene.salt + 1) % len(near)])
    return _with_member(scene.cohort, dataclasses.replace(stolen, client_id=near[scene.salt % len(near)]))


@_lie("share_keys")
def _keys_of_another_round(scene: Scene) -> AdvertisedCohort | None:
    for game in scene.elsewhere:
        if game.parameters != scene.game.parameters:
            known = [i for i in scene.honest_neighbours() if i in game.players]
            if known:
                return _with_member(scene.cohort, game.players[scene.pick(known)].advertisement)  # type: ignore[arg-type]
    return None


@_lie("share_keys")
def _signature_of_a_puppet(scene: Scene) -> AdvertisedCohort | None:
    near = scene.honest_neighbours()
    if not near:
        return None
    puppet = Actor(scene.pick(near), scene.game.parameters, variant=scene.salt, signs=False)
    return _with_member(scene.cohort, puppet.advertisement)


@_lie("share_keys")
def _low_order_key(scene: Scene) -> AdvertisedCohort | None:
    near = [i for i in scene.neighbours() if i in scene.game.corrupt]
    if not near:
        return None
    corrupt = _member(scene.cohort, scene.pick(near))
    point = (0, 1, 2**255 - 20, 2**255 - 19, 2**255)[scene.salt % 5].to_bytes(32, "little")
    keys = [corrupt.c_public, corrupt.s_public]
    keys[scene.salt % 2] = point + keys[scene.salt % 2][32:]
    return _with_member(scene.cohort, _signed_by(corrupt.client_id, scene, *keys))


@_lie("share_keys")
def _copied_key(scene: Scene) -> AdvertisedCohort | None:
    near = [i for i in scene.neighbours() if i in scene.game.corrupt]
    if not near:
        return None
    victim = _member(scene.cohort, scene.player.client_id)
    return _with_member(scene.cohort, _signed_by(scene.pick(near), scene, victim.c_public, victim.s_public))


@_lie("share_keys")
def _other_neighbours(scene: Scene) -> AdvertisedCohort | None:
    strangers = set(scene.story.ids) - set(scene.neighbours()) - {scene.player.client_id}
    if not strangers:
        return None
    swapped = scene.story.adverts[scene.pick(strangers)]
    members = [m for m in scene.cohort.members if m.client_id != scene.pick(scene.neighbours())]
    shown = sorted([*members, swapped], key=lambda member: member.client_id)
    places = [scene.story.ids.index(member.client_id) for member in shown]
    proof = scene.story.prove(places)
    return AdvertisedCohort(scene.cohort.ids, tuple(shown), proof)


@_lie("share_keys")
def _stranger_listed(scene: Scene) -> AdvertisedCohort:
    known = scene.game.parameters.cohort
    ids = (*scene.cohort.ids, *range(max(known) + 1, max(known) + 2 + scene.salt % 3))
    return dataclasses.replace(scene.cohort, ids=ids, proof=(*scene.cohort.proof, bytes(32)))


@_lie("share_keys")
def _cohort_below_the_quorum(scene: Scene) -> AdvertisedCohort:
    own = scene.player.client_id
    others = [i for i in scene.cohort.ids if i != own][: scene.salt % (scene.game.setting.quorum - 1)]
    adverts = {i: scene.story.adverts[i] for i in (own, *others) if i in scene.story.adverts}
    small = Story(scene.game.parameters, adverts, {}) if len(adverts) > scene.game.setting.degree else None
    if small is not None:
        return small.cohort_for(own)
    return AdvertisedCohort(tuple(sorted(adverts)), tuple(adverts[i] for i in sorted(adverts)), ())


@_lie("share_keys")
def _ids_out_of_order(scene: Scene) -> AdvertisedCohort:
    return dataclasses.replace(scene.cohort, ids=tuple(reversed(scene.cohort.ids)))


@_lie("share_keys")
def _id_twice(scene: Scene) -> AdvertisedCohort:
    twice = scene.pick(scene.cohort.ids)
    return dataclasses.replace(scene.cohort, ids=tuple(sorted((*scene.cohort.ids, twice))))


@_lie("share_keys")
def _proof_of_another_length(scene: Scene) -> AdvertisedCohort:
    proof = scene.cohort.proof
    return dataclasses.replace(scene.cohort, proof=(*proof, bytes(32)) if scene.salt % 2 or not proof else proof[:-1])


# The sharers and what they sealed


def _resealed(scene: Scene, name: str, change: Callable[[bytes], bytes]) -> ShareDelivery | None:
    entries: Mapping[int, bytes] = getattr(scene.delivery, name)
    if not entries:
        return None
    sender = scene.pick(entries)
    return _with_entries(scene, name, {**entries, sender: change(entries[sender])})


def _with_entries(scene: Scene, name: str, entries: Mapping[int, bytes]) -> ShareDelivery:
    changes: dict[str, Any] = {name: entries}
    return dataclasses.replace(scene.delivery, **changes)


def _flipped(salt: int) -> Callable[[bytes], bytes]:
    def flip(raw: bytes) -> bytes:
        place = salt % len(raw)
        return raw[:place] + bytes([raw[place] ^ (1 << salt % 8)]) + raw[place + 1 :]

    return flip


@_lie("receive_shares")
def _sealed_shares_altered(scene: Scene) -> ShareDelivery | None:
    return _resealed(scene, "shares", _flipped(scene.salt))


@_lie("receive_shares")
def _commitments_altered(scene: Scene) -> ShareDelivery | None:
    return _resealed(scene, "shares", _flipped(scene.salt % COMMITMENTS_BYTES))


@_lie("receive_shares")
def _pair_secret_altered(scene: Scene) -> ShareDelivery | None:
    return _resealed(scene, "pair_secrets", _flipped(scene.salt))


@_lie("receive_shares")
def _sealed_shares_truncated(scene: Scene) -> ShareDelivery | None:
    return _resealed(scene, "shares", lambda raw: raw[: scene.salt % len(raw)])


@_lie("receive_shares")
def _pair_secret_as_shares(scene: Scene) -> ShareDelivery | None:
    secrets = scene.delivery.pair_secrets
    return _resealed(scene, "shares", lambda _: secrets[scene.pick(secrets)]) if secrets else None


@_lie("receive_shares")
def _shares_of_two_senders_swapped(scene: Scene) -> ShareDelivery | None:
    return _swapped(scene, "shares")


@_lie("receive_shares")
def _pair_secrets_of_two_senders_swapped(scene: Scene) -> ShareDelivery | None:
    return _swapped(scene, "pair_secrets")


def _swapped(scene: Scene, name: str) -> ShareDelivery | None:
    entries = getattr(scene.delivery, name)
    if len(entries) < 2:
        return None
    one, other = sorted(entries)[:2]
    return _with_entries(scene, name, {**entries, one: entries[other], other: entries[one]})


@_lie("receive_shares")
def _shares_for_another_receiver(scene: Scene) -> ShareDelivery | None:
    senders = [i for i in scene.delivery.shares if i in scene.story.dealt]
    if not senders:
        return None
    sender = scene.pick(senders)
    others = {i: sealed for i, sealed in scene.story.dealt[sender].shares.items() if i != scene.player.client_id}
    return dataclasses.replace(scene.delivery, shares={**scene.delivery.shares, sender: others[scene.pick(others)]})


@_lie("receive_shares")
def _shares_of_another_cohort(scene: Scene) -> ShareDelivery | None:
    own = scene.player.client_id
    for game in (scene.game, *scene.elsewhere):
        for story in game.stories:
            known = [i for i in scene.delivery.shares if own in getattr(story.dealt.get(i), "shares", ())]
            if story is not scene.story and known:
                sender = scene.pick(known)
                replayed = {**scene.delivery.shares, sender: story.dealt[sender].shares[own]}
                return dataclasses.replace(scene.delivery, shares=replayed)
    return None


@_lie("receive_shares")
def _sender_left_out(scene: Scene) -> ShareDelivery | None:
    name = ("shares", "pair_secrets")[scene.salt % 2]
    entries = dict(getattr(scene.delivery, name))
    if not entries:
        return None
    del entries[scene.pick(entries)]
    return _with_entries(scene, name, entries)


@_lie("receive_shares")
def _shares_of_oneself(scene: Scene) -> ShareDelivery | None:
    if not scene.delivery.shares:
        return None
    some = scene.delivery.shares[scene.pick(scene.delivery.shares)]
    return dataclasses.replace(scene.delivery, shares={**scene.delivery.shares, scene.player.client_id: some})


@_lie("receive_shares")
def _sharers_without_oneself(scene: Scene) -> ShareDelivery:
    return dataclasses.replace(
        scene.delivery, sharers=tuple(i for i in scene.delivery.sharers if i != scene.player.client_id)
    )


@_lie("receive_shares")
def _sharer_never_listed(scene: Scene) -> ShareDelivery:
    return dataclasses.replace(scene.delivery, sharers=(*scene.delivery.sharers, max(scene.story.ids) + 1))


@_lie("receive_shares")
def _sharers_below_the_quorum(scene: Scene) -> ShareDelivery:
    own = scene.player.client_id
    others = [i for i in scene.delivery.sharers if i != own][: scene.salt % (scene.game.setting.quorum - 1)]
    return scene.story.delivery(own, (own, *others))


@_lie("receive_shares")
def _sharers_far_away(scene: Scene) -> ShareDelivery | None:
    """A set of sharers large enough for the quorum, in which fewer than t hold shares of this client's secrets."""
    if not scene.game.setting.sparse:
        return None
    near = scene.neighbours()
    gone = near[scene.salt % 2 :]
    return scene.story.delivery(scene.player.client_id, set(scene.delivery.sharers) - set(gone))


# The survivors


@_lie("sign_survivors")
def _survivors_without_oneself(scene: Scene) -> Survivors:
    return Survivors(tuple(i for i in scene.survivors.survivors if i != scene.player.client_id))


@_lie("sign_survivors")
def _survivor_that_never_shared(scene: Scene) -> Survivors:
    cohort = scene.game.parameters.cohort
    missing = set(cohort) - set(scene.player.sharers) or {max(cohort) + 1}
    return Survivors(tuple(sorted({*scene.survivors.survivors, scene.pick(missing)})))


@_lie("sign_survivors")
def _survivors_below_the_quorum(scene: Scene) -> Survivors:
    own = scene.player.client_id
    others = [i for i in scene.survivors.survivors if i != own][: scene.salt % (scene.game.setting.quorum - 1)]
    return Survivors(tuple(sorted((own, *others))))


@_lie("sign_survivors")
def _survivor_twice(scene: Scene) -> Survivors:
    twice = scene.pick(scene.survivors.survivors)
    return Survivors(tuple(sorted((*scene.survivors.survivors, twice))))


# The signatures


@_lie("unmask")
def _signatures_below_the_quorum(scene: Scene) -> SignatureSet:
    kept = sorted(scene.signatures.signatures)[: scene.salt % scene.game.setting.quorum]
    return SignatureSet({i: scene.signatures.signatures[i] for i in kept})


@_lie("unmask")
def _signatures_forged(scene: Scene) -> SignatureSet:
    few = scene.signatures.signatures
    real = sorted(few)[: scene.game.setting.quorum - 1]
    forged = Drbg(f"forged {scene.salt}")
    return SignatureSet({i: few[i] if i in real else forged(64) for i in scene.player.survivors})


@_lie("unmask")
def _one_signature_for_all(scene: Scene) -> SignatureSet | None:
    if not scene.signatures.signatures:
        return None
    one = scene.signatures.signatures[scene.pick(scene.signatures.signatures)]
    return SignatureSet(dict.fromkeys(scene.player.survivors, one))


@_lie("unmask")
def _signatures_over_other_survivors(scene: Scene) -> SignatureSet | None:
    """Those of everybody who signed something else, filled up with the few that are right."""
    statement, quorum = scene.player.statement(), scene.game.setting.quorum
    mixed = {
        signer: signature
        for game in (scene.game, *scene.elsewhere)
        for signed, signatures in game.signatures.items()
        if signed != statement
        for signer, signature in signatures.items()
        if signer in scene.player.survivors
    }
    right = {i: s for i, s in scene.signatures.signatures.items() if i not in mixed}
    few = dict(sorted(right.items())[: quorum - 1])
    return SignatureSet(mixed | few) if mixed else None


@_lie("unmask")
def _signer_that_did_not_survive(scene: Scene) -> SignatureSet | None:
    gone = set(scene.game.parameters.cohort) - set(scene.player.survivors)
    if not gone:
        return None
    signer = scene.pick(gone)
    return SignatureSet({**scene.signatures.signatures, signer: sign(identity(signer), scene.player.statement())})


@_lie("unmask")
def _signer_off_the_roster(scene: Scene) -> SignatureSet:
    return SignatureSet({**scene.signatures.signatures, 10_000 + scene.salt: bytes(64)})
