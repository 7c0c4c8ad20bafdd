"""Secure aggregation: the server learns the sum of its clients' vectors and none of the vectors (docs/protocol.md).

Every client adds masks to its vector of 64-bit words, modulo 2^64. A pairwise mask is a key stream that two neighbours
share: one adds it, the other subtracts it, so that it cancels in the sum. If one of the two drops out it does not
cancel, so each client's secrets are shared among its neighbours by Shamir's scheme (1979), and any t of them rebuild
the secret that the missing masks follow from. A client that is only slow would then be laid open, since its vector may
still arrive. Hence each client adds a self mask too, whose seed is shared likewise: for each client the neighbours
release shares of the one secret or of the other, never of both. This is Bonawitz et al. 2017 (CCS), in its malicious
setting. In large cohorts the neighbours are k others on a ring, as in Bell et al. 2020 (CCS), and not everybody.

The server may lie, and may have clients on its side. What protects the others: keys are fresh in every round and signed
by the identity keys of the roster, over a hash (ctx) of everything that was agreed on; survivors are fixed before any
share is released, by signatures of a quorum (R3), so that two clients never act on different sets; and each step
happens once. A message that is repeated word for word gets the same answer; any other second message is refused.

`ClientSession` and `ServerRound` are the two state machines. Their legal transitions are one table (`transitions`); a
message that fails a check raises ProtocolViolation under one of the fixed names in `checks` and leaves the state as it
was. There is no input or output here: only `fedcore.errors`, NumPy, `cryptography` and PyNaCl are imported,
randomness is an argument, and there is no clock. So the server, the client and the simulator all run the same code.
"""

from fedcore.secagg.checks import Check, Fault
from fedcore.secagg.client import ClientSession
from fedcore.secagg.complaint import Complaint, ComplaintSubject, Verdict
from fedcore.secagg.crypto.agreement import Agreement, BothEnds, Exchange
from fedcore.secagg.crypto.keys import Randomness, Secret, Signer, Verify, verifies
from fedcore.secagg.crypto.masking import Masker, MaskTerm, apply_masks
from fedcore.secagg.crypto.schedule import Outcome
from fedcore.secagg.messages import (
    AdvertisedCohort,
    Advertisement,
    ConsistencySignature,
    Dealing,
    KeyShares,
    ShareDelivery,
    SignatureSet,
    Survivors,
    UnmaskShares,
)
from fedcore.secagg.parameters import RoundParameters
from fedcore.secagg.server import ServerRound
from fedcore.secagg.sizing import (
    FULL_GRAPH_BELOW,
    Adversary,
    GraphSize,
    cohort_graph,
    corrupt_clients,
    default_quorum,
    graph_size,
)
from fedcore.secagg.transitions import ClientState, ServerStage, render_diagram

__all__ = [
    "FULL_GRAPH_BELOW",
    "Adversary",
    "AdvertisedCohort",
    "Advertisement",
    "Agreement",
    "BothEnds",
    "Check",
    "ClientSession",
    "ClientState",
    "Complaint",
    "ComplaintSubject",
    "ConsistencySignature",
    "Dealing",
    "Exchange",
    "Fault",
    "GraphSize",
    "KeyShares",
    "MaskTerm",
    "Masker",
    "Outcome",
    "Randomness",
    "RoundParameters",
    "Secret",
    "ServerRound",
    "ServerStage",
    "ShareDelivery",
    "SignatureSet",
    "Signer",
    "Survivors",
    "UnmaskShares",
    "Verdict",
    "Verify",
    "apply_masks",
    "cohort_graph",
    "corrupt_clients",
    "default_quorum",
    "graph_size",
    "render_diagram",
    "verifies",
]
