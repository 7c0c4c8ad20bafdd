"""Secure aggregation without input and output (PROTOCOL.md, R0 to R4).

`ClientSession` and `ServerRound` are the two state machines; the rest are their messages and parameters. The package
imports only `fedcore.errors`, NumPy and `cryptography`; randomness is an argument and there is no clock.
"""

from fedcore.secagg.checks import Check
from fedcore.secagg.client import ClientSession
from fedcore.secagg.keys import Randomness, Secret
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
from fedcore.secagg.parameters import RoundParameters, default_threshold
from fedcore.secagg.server import ServerRound
from fedcore.secagg.transitions import ClientState, ServerStage, render_diagram

__all__ = [
    "AdvertisedCohort",
    "Advertisement",
    "Check",
    "ClientSession",
    "ClientState",
    "ConsistencySignature",
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
    "apply_masks",
    "default_threshold",
    "render_diagram",
]
