"""Key agreement: X25519 alone, or together with ML-KEM-768 against later quantum decryption.

A masked upload that is recorded today must not open when X25519 falls. The hybrid agreement is secure as long as one
of the two holds: both secrets go side by side into one HKDF (NIST SP 800-56C revision 2, section 2; X-Wing,
draft-connolly-cfrg-xwing-kem, argues the same pair). Both public keys are bound through L1 and both parties through
the HKDF's info, so that neither can be exchanged under the other.

A pair is a function of a 32-byte root, since the root is what Shamir's scheme shares: anybody who rebuilds it rebuilds
the pair. Encapsulation draws its own randomness inside `cryptography`, so nothing that must be rebuilt may depend on
an encapsulated secret alone (see `schedule.seal_pair_secret`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedcore.errors import ProtocolViolation
from fedcore.secagg.checks import Check
from fedcore.secagg.crypto.domain import Usage, derive
from fedcore.secagg.crypto.keys import KEY_BYTES, Randomness, Secret, draw

_MLKEM_PUBLIC_BYTES = 1184
_MLKEM_CIPHERTEXT_BYTES = 1088
MLKEM_SEED_BYTES = 64

_CURVE_PRIME = 2**255 - 19
# The u-coordinates of all points whose order divides eight: 0 (order two), 1 and -1 (four), and two of order eight.
_LOW_ORDER = frozenset(
    {
        0,
        1,
        _CURVE_PRIME - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    }
)


Exchange = Callable[[X25519PrivateKey, bytes, bytes], bytes]
"""`exchange`, or a memory of it: a private key, its own public key, the peer's -> the agreed secret."""


def exchange(private: X25519PrivateKey, own: bytes, peer: bytes) -> bytes:
    """X25519 (RFC 7748), 32 bytes; ValueError if they are zero whatever the own key. `own` is not needed."""
    return private.exchange(X25519PublicKey.from_public_bytes(peer))


class BothEnds:
    """`exchange` for a process that holds both ends of pairs, as a simulation does: one operation serves both.

    Each secret is kept until the other end has asked for it, and no longer; every end asks once (`KeyPair`).
    """

    def __init__(self) -> None:
        self._waiting: dict[bytes, bytes] = {}

    def __call__(self, private: X25519PrivateKey, own: bytes, peer: bytes) -> bytes:
        """The secret that two ends agree on, kept for the second of them."""
        ends = own + peer if own < peer else peer + own
        agreed = self._waiting.pop(ends, None)
        if agreed is None:
            agreed = self._waiting[ends] = exchange(private, own, peer)
        return agreed

    def __repr__(self) -> str:
        return f"<BothEnds waiting={len(self._waiting)}>"


class Agreement(StrEnum):
    """Which agreement a round uses; all its clients use the same."""

    X25519 = "x25519"
    HYBRID = "x25519-mlkem768"

    @property
    def public_bytes(self) -> int:
        """Length of a public key: X25519's 32 bytes, then ML-KEM's."""
        return KEY_BYTES + (_MLKEM_PUBLIC_BYTES if self is Agreement.HYBRID else 0)

    @property
    def ciphertext_bytes(self) -> int:
        """Length of what goes to the peer with an agreed secret; X25519 needs nothing."""
        return _MLKEM_CIPHERTEXT_BYTES if self is Agreement.HYBRID else 0

    def disclosed(self, public: bytes, agreed: bytes, mlkem_seed: bytes, ciphertext: bytes) -> Secret | None:
        """The secret behind a ciphertext for the key `public`, for anybody who was shown how its owner derives it.

        Args:
            agreed: X25519's secret, 32 bytes.
            mlkem_seed: that of the owner's ML-KEM pair, empty without ML-KEM; None is the answer if it is another
                pair's.
        """
        if self is Agreement.X25519:
            return None if mlkem_seed else Secret(agreed)
        if len(mlkem_seed) != MLKEM_SEED_BYTES:
            return None
        private = MLKEM768PrivateKey.from_seed_bytes(mlkem_seed)
        if private.public_key().public_bytes_raw() != public[KEY_BYTES:]:
            return None
        return Secret(private.decapsulate(ciphertext) + agreed)

    def check_public(self, public: bytes, owner: int) -> None:
        """Raise ProtocolViolation unless a key of `owner` is one to agree with.

        "low-order-point" for a point that makes every X25519 agreement zero, "malformed" for another length or an
        ML-KEM key that fails the modulus check of FIPS 203, section 7.2.
        """
        if len(public) != self.public_bytes:
            raise ProtocolViolation(Check.MALFORMED, f"a public key has {self.public_bytes} bytes", peer=owner)
        if is_low_order(public[:KEY_BYTES]):
            raise ProtocolViolation(Check.LOW_ORDER_POINT, f"client {owner} advertised a key of low order", peer=owner)
        if self is Agreement.HYBRID:
            try:
                MLKEM768PublicKey.from_public_bytes(public[KEY_BYTES:])
            except ValueError:
                raise ProtocolViolation(
                    Check.MALFORMED, f"client {owner} advertised what is no ML-KEM key", peer=owner
                ) from None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyPair:
    """A pair of keys: `public` has `agreement.public_bytes` bytes, `root` (32 bytes) is what all of it follows from."""

    agreement: Agreement
    public: bytes
    root: Secret = field(repr=False)
    _x25519: X25519PrivateKey = field(repr=False)
    _mlkem: MLKEM768PrivateKey | None = field(repr=False)
    # A memory, no state: one agreement serves both directions between two clients.
    _agreed: dict[bytes, bytes] = field(default_factory=dict, repr=False, compare=False)
    _agree: Exchange = field(default=exchange, repr=False, compare=False)

    @classmethod
    def draw(cls, agreement: Agreement, randomness: Randomness, agree: Exchange = exchange) -> KeyPair:
        """A fresh pair from 32 random bytes."""
        return cls.from_root(agreement, Secret(draw(randomness, KEY_BYTES)), agree)

    @classmethod
    def from_root(cls, agreement: Agreement, root: Secret, agree: Exchange = exchange) -> KeyPair:
        """The pair that follows from 32 secret bytes."""
        x25519 = X25519PrivateKey.from_private_bytes(derive(root.reveal(), b"", Usage.KEY_X25519))
        public, mlkem = x25519.public_key().public_bytes_raw(), None
        if agreement is Agreement.HYBRID:
            # FIPS 203's key generation takes two seeds, d and z.
            seed = b"".join(derive(root.reveal(), b"", Usage.KEY_MLKEM, part) for part in ("d", "z"))
            mlkem = MLKEM768PrivateKey.from_seed_bytes(seed)
            public += mlkem.public_key().public_bytes_raw()
        return cls(agreement=agreement, public=public, root=root, _x25519=x25519, _mlkem=mlkem, _agree=agree)

    def encapsulate(self, peer_public: bytes) -> tuple[bytes, Secret]:
        """A ciphertext for the peer, and the secret (32 or 64 bytes) that the two then share."""
        agreed = self._exchange(peer_public)
        if self._mlkem is None:
            return b"", Secret(agreed)
        secret, ciphertext = MLKEM768PublicKey.from_public_bytes(peer_public[KEY_BYTES:]).encapsulate()
        return ciphertext, Secret(secret + agreed)

    def decapsulate(self, peer_public: bytes, ciphertext: bytes) -> Secret:
        """The secret behind a peer's ciphertext; another ciphertext gives another secret and no error (FIPS 203)."""
        agreed = self._exchange(peer_public)
        if self._mlkem is None:
            return Secret(agreed)
        return Secret(self._mlkem.decapsulate(ciphertext) + agreed)

    def disclose(self) -> tuple[Secret, Secret]:
        """X25519's private key (32 bytes) and ML-KEM's seed (64, or none): what a complaint is made from."""
        seed = self._mlkem.private_bytes_raw() if self._mlkem is not None else b""
        return Secret(self._x25519.private_bytes_raw()), Secret(seed)

    def _exchange(self, peer_public: bytes) -> bytes:
        """X25519 (RFC 7748); ProtocolViolation("low-order-point") if the result is zero whatever the own key."""
        point = peer_public[:KEY_BYTES]
        if point not in self._agreed:
            try:
                self._agreed[point] = self._agree(self._x25519, self.public[:KEY_BYTES], point)
            except ValueError:
                raise ProtocolViolation(
                    Check.LOW_ORDER_POINT, "a public key of low order makes the agreed secret zero"
                ) from None
        return self._agreed[point]


def is_low_order(public: bytes) -> bool:
    """Whether an X25519 public key (32 bytes) lies in the small subgroup of the curve or of its twist.

    The top bit is ignored and the rest reduced modulo 2^255 - 19, as RFC 7748 (section 5) decodes it, so that no
    other encoding of such a point gets through. `KeyPair` refuses the zero result again.
    """
    coordinate = int.from_bytes(public, "little") % 2**255 % _CURVE_PRIME
    return coordinate in _LOW_ORDER
