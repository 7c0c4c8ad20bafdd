"""Secure aggregation without input and output (docs/protocol.md, R0 to R4).

`ClientSession` and `ServerRound` are the two state machines; the rest are their messages and parameters. The package
imports only `fedcore.errors`, NumPy and `cryptography`; randomness is an argument and there is no clock.
"""

from fedcore.secagg.agreement import Agreement
from fedcore.secagg.checks import Check
from fedcore.secagg.client import ClientSession
from fedcore.secagg.keys import Randomness, Secret, Verify, verifies
from fedcore.secagg.masking import MaskTerm, apply_masks
from fedcore.secagg.messages import (
    AdvertisedCohort,
    Advertisement,
    ConsistencySignature,
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
    "Check",
    "ClientSession",
    "ClientState",
    "ConsistencySignature",
    "GraphSize",
    "KeyShares",
    "MaskTerm",
    "Randomness",
    "RoundParameters",
    "Secret",
    "ServerRound",
    "ServerStage",
    "ShareDelivery",
    "SignatureSet",
    "Survivors",
    "UnmaskShares",
    "Verify",
    "apply_masks",
    "cohort_graph",
    "corrupt_clients",
    "default_quorum",
    "graph_size",
    "render_diagram",
    "verifies",
]
