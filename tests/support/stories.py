"""What a lying server tells: stories about who advertised which keys, and the clients that it plays in them.

It plays corrupt clients, whose identity keys it has, and puppets: honest clients' ids with keys of its own making, for
which it has no signature.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.errors import ConfigurationError
from fedcore.secagg import (
    AdvertisedCohort,
    Advertisement,
    Agreement,
    KeyShares,
    RoundParameters,
    Secret,
    ShareDelivery,
    dealing,
    verifies,
)
from fedcore.secagg.crypto import schedule, shamir
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.secagg.crypto.keys import SIGNATURE_BYTES, sign
from fedcore.secagg.crypto.tree import Tree
from fedcore.secagg.graph import Graph

WORDS = 3
ROSTER_SIZE = 24


class Drbg:
    """SHAKE-256 over a seed and a counter: randomness that a schedule repeats exactly."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._calls = 0

    def __call__(self, size: int) -> bytes:
        self._calls += 1
        return hashlib.shake_256(f"{self._seed}/{self._calls}".encode()).digest(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The parameters of a schedule's rounds. `corrupt` is what the round allows for, and how many there are."""

    n: int
    quorum: int
    degree: int
    threshold: int
    corrupt: int
    agreement: Agreement = Agreement.X25519

    @property
    def ids(self) -> tuple[int, ...]:
        """All clients."""
        return tuple(range(1, self.n + 1))

    @property
    def sparse(self) -> bool:
        """Whether the graph is a ring."""
        return self.degree < self.n - 1

    def parameters(self, number: int) -> RoundParameters:
        """Of round `number`; ConfigurationError where the rules refuse them."""
        return RoundParameters(
            federation="hostile",
            run="run-1",
            round=number,
            cohort=self.ids,
            quorum=self.quorum,
            degree=self.degree,
            threshold=self.threshold,
            corrupt=self.corrupt,
            agreement=self.agreement,
            words=WORDS,
            encoding=b"bits=16",
            roster_hash=hashlib.sha256(b"roster").digest(),
            model_hash=hashlib.sha256(b"model").digest(),
            task_hash=hashlib.sha256(b"task").digest(),
        )


def tightest(setting: Setting) -> Setting:
    """The same with the least threshold, from the given one up, that the rules accept: a server's best."""
    for threshold in range(setting.threshold, setting.degree + 2):
        candidate = replace(setting, threshold=threshold)
        try:
            candidate.parameters(1)
        except ConfigurationError:
            continue
        return candidate
    raise ConfigurationError(f"no threshold will do for {setting}")


@lru_cache(maxsize=ROSTER_SIZE)
def identity(client_id: int) -> Ed25519PrivateKey:
    """The long-lived key of a client."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"hostile %d" % client_id).digest())


ROSTER = {i: identity(i).public_key().public_bytes_raw() for i in range(1, ROSTER_SIZE + 1)}

remembered = lru_cache(maxsize=1 << 16)(verifies)
"""Every client checks the same signatures: once is enough for a test."""


class Actor:
    """A client that the server plays: a corrupt one, or with `signs` false a puppet under an honest client's id."""

    def __init__(self, client_id: int, parameters: RoundParameters, *, variant: int, signs: bool) -> None:
        source = Drbg(f"actor {client_id} {variant} {signs} {parameters.ctx().hex()}")
        self.client_id = client_id
        self.seal_pair, self.mask_pair = (KeyPair.draw(parameters.agreement, source) for _ in range(2))
        self.self_secret = Secret(source(32))
        self._source = source
        self._threshold = parameters.threshold
        statement = schedule.advertisement_statement(
            parameters.ctx(), client_id, self.seal_pair.public, self.mask_pair.public
        )
        signature = sign(identity(client_id), statement) if signs else bytes(SIGNATURE_BYTES)
        self.advertisement = Advertisement(client_id, self.seal_pair.public, self.mask_pair.public, signature)

    def seal(self, story: Story, receiver: int) -> tuple[bytes, bytes | None]:
        """What an honest client in its place would seal for `receiver`: shares, and a pair secret if it chooses."""
        graph, own, public = story.graph, self.client_id, story.adverts[receiver]
        parts = [
            shamir.split(secret, threshold=self._threshold, holders=graph.holders, randomness=self._source)
            for secret in (self.mask_pair.root, self.self_secret)
        ]
        text = b"".join(part[graph.point(own, receiver) - 1] for part in parts)
        parcel = dealing.commit(story.transcript.context, own, receiver, text)
        parcel += schedule.seal_shares(
            story.transcript, self.seal_pair, public.c_public, sender=own, receiver=receiver, text=text
        )
        if not graph.chooses(own, receiver):
            return parcel, None
        secret = schedule.pair_secret(story.transcript, self.mask_pair.root, chooser=own, peer=receiver)
        return parcel, schedule.seal_pair_secret(
            story.transcript, self.mask_pair, public.s_public, sender=own, receiver=receiver, secret=secret
        )


class Story:
    """One list U1 as the server tells it, and all that follows: L1, the ring, what its believers dealt.

    `actors` are those of its entries whose secrets the server has.
    """

    def __init__(
        self, parameters: RoundParameters, adverts: Mapping[int, Advertisement], actors: Mapping[int, Actor]
    ) -> None:
        self.ids = tuple(sorted(adverts))
        self.adverts = dict(adverts)
        self.actors = dict(actors)
        self.dealt: dict[int, KeyShares] = {}
        self.agreement = parameters.agreement
        self._tree = Tree([adverts[i].digest() for i in self.ids])
        context = parameters.ctx()
        self.transcript = schedule.Transcript(
            context=context, cohort=schedule.cohort_hash(context, self.ids, self._tree.root)
        )
        self.graph = Graph(self.ids, degree=parameters.degree, seed=schedule.ring_seed(self.transcript))
        self.ring = _walk(self.graph, self.ids, parameters.degree)
        self._sealed: dict[tuple[int, int], tuple[bytes, bytes | None]] = {}

    def cohort_for(self, client_id: int) -> AdvertisedCohort:
        """U1 as an honest server shows it to `client_id`."""
        shown = sorted((client_id, *self.graph.neighbours(client_id)))
        proof = self.prove(self.ids.index(i) for i in shown)
        return AdvertisedCohort(self.ids, tuple(self.adverts[i] for i in shown), proof)

    def prove(self, places: Iterable[int]) -> tuple[bytes, ...]:
        """The hashes beside the leaves at `places`."""
        return self._tree.prove(sorted(places))

    def can_deal(self, sender: int) -> bool:
        """Whether the server has, or can make, what `sender` seals."""
        return sender in self.dealt or sender in self.actors

    def sealed(self, sender: int, receiver: int) -> tuple[bytes, bytes | None]:
        """The parcel and, if the sender chooses it, the pair secret, sealed for `receiver`."""
        if sender in self.dealt:
            return self.dealt[sender].shares[receiver], self.dealt[sender].pair_secrets.get(receiver)
        if (sender, receiver) not in self._sealed:
            self._sealed[sender, receiver] = self.actors[sender].seal(self, receiver)
        return self._sealed[sender, receiver]

    def delivery(self, client_id: int, sharers: Iterable[int]) -> ShareDelivery:
        """U2 and what its members sealed; a neighbour that never dealt is left out of it."""
        near = self.graph.neighbours(client_id)
        named = {v for v in sharers if v in self.ids and (v not in near or self.can_deal(v))}
        sealed = {v: self.sealed(v, client_id) for v in sorted(named.intersection(near))}
        return ShareDelivery(
            tuple(sorted(named)),
            {v: shares for v, (shares, _) in sealed.items()},
            {v: secret for v, (_, secret) in sealed.items() if secret is not None},
        )


def _walk(graph: Graph, ids: tuple[int, ...], degree: int) -> tuple[int, ...]:
    """The order on the ring, as the graph lets everybody see it: by the points of each owner's holders."""
    if graph.full:
        return tuple(sorted(ids, key=lambda i: graph.point(ids[0], i)))
    after = {i: next(v for v in graph.neighbours(i) if graph.point(i, v) == degree // 2 + 2) for i in ids}
    ring = [ids[0]]
    while len(ring) < len(ids):
        ring.append(after[ring[-1]])
    return tuple(ring)
