"""Records of exchanges that never were, with real signatures: a roster, tasks, and who signs what."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.codec import CodecSettings, first_encoding
from fedcore.federation import Roster
from fedcore.federation.roster import Member
from fedcore.federation.transcript import ExchangeRecord, SignedRecord, next_head, record_hash
from fedcore.run.exchange import round_parameters
from fedcore.secagg import Outcome, Signer
from fedcore.state import Layout, TensorSpec
from fedcore.wire.tasks import ModelRef, Protection, Task

FEDERATION = "testing"
LAYOUT = Layout(specs=(TensorSpec(name="weight", dtype="F32", shape=(3, 4)),))
MODEL = ModelRef(sha256="ab" * 32, size=100)
PROTECTION = Protection(degree=3, threshold=3, corrupt=0, agreement="x25519")


def make_task(exchange: int = 1, **changes: Any) -> Task:
    """A secure task for four clients; `changes` are fields of it."""
    fields: dict[str, Any] = {
        "run": "run",
        "exchange": exchange,
        "attempt": 1,
        "server_round": 1,
        "message_type": "train",
        "aggregation": "secure",
        "app_sha256": "cd" * 32,
        "run_config": {"lr": 0.1, "num-server-rounds": 3},
        "arrays_key": "arrays",
        "configs": {"config": {"x": 1.0}},
        "weight_key": "num-examples",
        "model": MODEL,
        "cohort": [1, 2, 3, 4],
        "quorum": 3,
        "protection": PROTECTION,
        "encoding": first_encoding(CodecSettings(w_max=100), LAYOUT, 4),
        "roster": 1,
        "seconds": 600.0,
    }
    if (buffer := changes.get("buffer")) is not None:
        newest = {start.number: start.sha256 for start in buffer.starts}.get(buffer.newest, f"{buffer.newest:064x}")
        fields["model"] = ModelRef(sha256=newest, size=MODEL.size)
    return Task(**{**fields, **changes})


@dataclass
class Notary:
    """The identities of a federation, and the chain that they sign."""

    roster: Roster
    keys: Mapping[int, Signer]
    head: str = ""
    records: list[SignedRecord] = field(default_factory=list)

    @classmethod
    def of(cls, clients: int = 4) -> Notary:
        """A federation of so many clients."""
        seeds = {number: hashlib.sha256(b"client %d" % number).digest() for number in range(1, clients + 1)}
        keys = {number: Ed25519PrivateKey.from_private_bytes(seed) for number, seed in seeds.items()}
        members = [
            Member(id=number, name=f"client-{number}", public_key=key.public_key().public_bytes_raw())
            for number, key in keys.items()
        ]
        return cls(Roster.sign(FEDERATION, members, Ed25519PrivateKey.from_private_bytes(bytes(32))), keys)

    def outcome(self, task: Task, survivors: Sequence[int]) -> Outcome:
        """What R3 signs of the exchange."""
        parameters = round_parameters(
            task,
            federation=FEDERATION,
            roster_hash=self.roster.hash(),
            model_hash=bytes.fromhex(task.model.sha256) if task.model else None,
        )
        cohort = hashlib.sha256(b"L1 of exchange %d" % task.exchange).digest()
        return Outcome(context=parameters.ctx(), cohort=cohort, sharers=tuple(task.cohort), survivors=tuple(survivors))

    def sum(
        self,
        exchange: int,
        *,
        signers: Collection[int] = (1, 2, 3),
        survivors: Sequence[int] = (1, 2, 3, 4),
        complete: bool = True,
        coin: bytes = b"",
        **changes: Any,
    ) -> SignedRecord:
        """Add the record of one more exchange to the chain."""
        task = make_task(exchange, **{"previous": self.head, **changes})
        outcome = replace(self.outcome(task, survivors), coin=coin)
        signed = SignedRecord(
            record=ExchangeRecord.of(task, federation=FEDERATION, roster_hash=self.roster.hash(), outcome=outcome),
            complete=complete,
            signatures={signer: self.keys[signer].sign(outcome.statement()) for signer in signers},
        )
        self.records.append(signed)
        self.head = next_head(self.head, task.previous, record_hash(outcome, complete=complete))
        return signed
