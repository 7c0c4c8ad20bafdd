"""A federation in memory whose every step a test can take, skip or falsify."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from fedcore.errors import ProtocolViolation
from fedcore.secagg import (
    Agreement,
    ClientSession,
    RoundParameters,
    Secret,
    ServerRound,
    apply_masks,
    default_quorum,
)
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.secagg.crypto.keys import sign, verifies
from fedcore.secagg.crypto.schedule import Transcript, advertisement_statement, cohort_hash, ring_seed
from fedcore.secagg.crypto.tree import Tree
from fedcore.secagg.graph import Graph
from fedcore.secagg.messages import AdvertisedCohort, Advertisement

RING = {"degree": 6, "threshold": 5, "quorum": 9}
"""A sparse ring of 13: seven hold shares of one secret, and any two of the seven may be lost."""
RING_SIZE = 13

# Rounds of the same randomness carry the same signatures: each is checked once for all tests.
_verify = functools.cache(verifies)


class Drbg:
    """SHAKE-256 over a seed and a counter: fixed randomness for tests, never used twice."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._calls = 0

    def __call__(self, size: int) -> bytes:
        self._calls += 1
        return hashlib.shake_256(f"{self._seed}/{self._calls}".encode()).digest(size)


STEPS = ("advertise", "share", "deliver", "upload", "sign", "unmask")


class Rig:
    """n clients and a server in one round; a step method takes the clients it is for, all that are left by default."""

    def __init__(self, n: int = 5, *, words: int = 37, threshold: int | None = None, **changes: Any) -> None:
        self.ids = tuple(range(1, n + 1))
        needed = threshold or default_quorum(n)
        self.identities = {
            i: Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"identity %d" % i).digest()) for i in self.ids
        }
        self.roster = {i: key.public_key().public_bytes_raw() for i, key in self.identities.items()}
        fields: dict[str, Any] = {
            "federation": "test",
            "run": "run-1",
            "round": 1,
            "cohort": self.ids,
            "quorum": needed,
            "degree": n - 1,
            "threshold": needed,
            "corrupt": 0,
            "agreement": Agreement.X25519,
            "words": words,
            "encoding": b"bits=16",
            "roster_hash": hashlib.sha256(b"roster").digest(),
            "model_hash": hashlib.sha256(b"model").digest(),
            "task_hash": hashlib.sha256(b"task").digest(),
        }
        self.parameters = RoundParameters(**(fields | changes))
        self.server = ServerRound(
            parameters=self.parameters, roster=self.roster, randomness=Drbg("server"), verify=_verify
        )
        self.clients = {i: self.client(i) for i in self.ids}
        self.inputs = {
            i: np.random.default_rng(i).integers(0, 2**64, words, dtype=np.uint64, endpoint=False) for i in self.ids
        }
        self.uploads: dict[int, NDArray[np.uint64]] = {}

    @classmethod
    def ring(cls, n: int = RING_SIZE, **changes: Any) -> Rig:
        """A sparse graph."""
        return cls(n, **(RING | changes))

    def client(self, client_id: int, *, seed: str = "", **changes: Any) -> ClientSession:
        fields: dict[str, Any] = {
            "parameters": self.parameters,
            "client_id": client_id,
            "identity": self.identities[client_id],
            "roster": self.roster,
            "min_cohort": 2,
            "min_threshold": 2,
            "randomness": Drbg(f"client {client_id} {seed} {self.parameters.ctx().hex()}"),
            "verify": _verify,
        }
        return ClientSession(**(fields | changes))

    def graph(self) -> Graph:
        """The graph of the round as any party works it out from what was advertised."""
        return self.view(self.advertisements()).graph

    def advertisements(self) -> dict[int, Advertisement]:
        """Every advertisement that the server has, by client."""
        cohorts = [self.server.advertised(i) for i in sorted(self.server.expected)]
        return {member.client_id: member for cohort in cohorts for member in cohort.members}

    def view(self, advertisements: Mapping[int, Advertisement], parameters: RoundParameters | None = None) -> View:
        """What a server that holds these advertisements, honest or not, would show."""
        return View(parameters or self.parameters, dict(advertisements))

    def keys(self, seed: str) -> bytes:
        """A public key for this round's agreement."""
        return KeyPair.draw(self.parameters.agreement, Drbg(seed)).public

    def signed(
        self,
        client_id: int,
        c_public: bytes,
        s_public: bytes,
        *,
        context: bytes | None = None,
        identity: Ed25519PrivateKey | None = None,
    ) -> Advertisement:
        """An advertisement of any keys, signed by the client or by another identity in its name."""
        statement = advertisement_statement(context or self.parameters.ctx(), client_id, c_public, s_public)
        return Advertisement(client_id, c_public, s_public, sign(identity or self.identities[client_id], statement))

    def advertise(self, ids: Iterable[int] | None = None) -> None:
        for i in self._expected(ids):
            self.server.receive_advertisement(self.clients[i].advertise())
        self.server.close_stage()

    def share(self, ids: Iterable[int] | None = None) -> None:
        for i in self._expected(ids):
            self.server.receive_shares(self.clients[i].share_keys(self.server.advertised(i)))
        self.server.close_stage()

    def deliver(self, ids: Iterable[int] | None = None) -> None:
        for i in self._expected(ids):
            self.clients[i].receive_shares(self.server.delivery(i))

    def mask(self, client_id: int, threads: int = 1) -> bytes:
        vector = self.inputs[client_id].copy()
        self.clients[client_id].mask(vector, threads=threads)
        self.uploads[client_id] = vector
        return hashlib.sha256(vector.tobytes()).digest()

    def upload(self, ids: Iterable[int] | None = None) -> None:
        for i in self._expected(ids):
            self.server.receive_input(i, self.mask(i))
        self.server.close_stage()

    def sign(self, ids: Iterable[int] | None = None) -> None:
        for i in self._expected(ids):
            self.server.receive_consistency(self.clients[i].sign_survivors(self.server.survivors()))
        self.server.close_stage()

    def unmask(self, ids: Iterable[int] | None = None) -> None:
        for i in self._expected(ids):
            self.server.receive_unmask(self.clients[i].unmask(self.server.signatures()))
        self.server.close_stage()

    def until(self, step: str) -> Rig:
        """Take every step before `step` with all clients."""
        for name in STEPS[: [*STEPS, "end"].index(step)]:
            getattr(self, name)()
        return self

    def go_on(self, step: str) -> None:
        """Take `step` and all that follow with all clients that are left, and check the sum."""
        for name in STEPS[[*STEPS, "end"].index(step) :]:
            getattr(self, name)()
        self.assert_sum(self.server.survivors().survivors)

    def lose(self, step: str, lost: Iterable[int]) -> None:
        """Take `step` without some clients, and the rest of the round with those that are left."""
        getattr(self, step)(set(self.server.expected) - set(lost))
        self.go_on([*STEPS, "end"][STEPS.index(step) + 1])

    def total(self) -> NDArray[np.uint64]:
        """The server's sum with the masks removed."""
        total = np.zeros(self.parameters.words, dtype=np.uint64)
        for i in self.server.survivors().survivors:
            total += self.uploads[i]
        apply_masks(total, self.server.mask_terms())
        return total

    def assert_sum(self, ids: Iterable[int]) -> None:
        """The sum is exactly that of these clients, modulo 2^64."""
        expected = np.sum([self.inputs[i] for i in ids], axis=0, dtype=np.uint64)
        np.testing.assert_array_equal(self.total(), expected)

    def refused(self, check: str, machine: Any, call: Callable[[], Any]) -> ProtocolViolation:
        """`call` fails the named check and `machine` (a session or the server) stays as it was."""
        before = frozen(machine)
        with pytest.raises(ProtocolViolation) as caught:
            call()
        assert caught.value.check == check
        assert frozen(machine) == before
        return caught.value

    def _expected(self, ids: Iterable[int] | None) -> list[int]:
        return sorted(self.server.expected if ids is None else ids)


class View:
    """The cohort as a server tells it that holds `advertisements`: consistent in itself, whatever they are."""

    def __init__(self, parameters: RoundParameters, advertisements: dict[int, Advertisement]) -> None:
        self.ids = tuple(sorted(advertisements))
        self.advertisements = advertisements
        self.tree = Tree([advertisements[i].digest() for i in self.ids])
        context = parameters.ctx()
        self.transcript = Transcript(context=context, cohort=cohort_hash(context, self.ids, self.tree.root))
        self.graph = Graph(self.ids, degree=parameters.degree, seed=ring_seed(self.transcript))

    def cohort(self, client_id: int) -> AdvertisedCohort:
        """What `client_id` is shown."""
        return self.showing((client_id, *self.graph.neighbours(client_id)))

    def showing(self, shown: Iterable[int]) -> AdvertisedCohort:
        """The keys of these clients, and a true proof that they belong to the cohort."""
        ids = sorted(shown)
        proof = self.tree.prove([self.ids.index(i) for i in ids])
        return AdvertisedCohort(self.ids, tuple(self.advertisements[i] for i in ids), proof)


def frozen(value: Any) -> Any:
    """Everything that a state machine holds, secrets included, as a value that can be compared."""
    if isinstance(value, ClientSession | ServerRound):
        return {name: frozen(part) for name, part in vars(value).items()}
    if isinstance(value, Secret):
        return value.reveal()
    if dataclasses.is_dataclass(value):
        return {f.name: frozen(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare}
    if isinstance(value, Mapping):
        return {key: frozen(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [frozen(part) for part in value]
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, Drbg):
        return id(value)
    return value


@pytest.fixture
def make_rig() -> type[Rig]:
    """The class itself: a test says how many clients it wants."""
    return Rig


@pytest.fixture(params=["full", "ring", "full-hybrid", "ring-hybrid"])
def any_rig(request: pytest.FixtureRequest) -> Callable[..., Rig]:
    """Makes rigs of five clients on the full graph and of 13 on a ring, with either agreement."""
    kind, _, hybrid = request.param.partition("-")
    agreement = Agreement.HYBRID if hybrid else Agreement.X25519
    return functools.partial(Rig.ring if kind == "ring" else Rig, agreement=agreement)


@pytest.fixture
def drbg() -> type[Drbg]:
    """Fixed randomness by seed."""
    return Drbg


@pytest.fixture
def freeze() -> Callable[[Any], Any]:
    """`frozen`, to compare a state machine before and after."""
    return frozen
