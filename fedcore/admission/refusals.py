"""What an operator reads of the refusals of clients: the check, its two numbers, and what would help.

A client tells the server the fixed name of a check and, where the check depends on the task and the policy alone, what
was asked and what its owner allows. The sentences are made here, by the server and by the simulator alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from fedcore.admission import tasks
from fedcore.admission.agreed import CONFIG_NOT_ALLOWED
from fedcore.admission.releases import DIFFERENCING, TOO_MANY_RELEASES
from fedcore.errors import ProtocolViolation
from fedcore.secagg import Check
from fedcore.wire import WithdrawIn

_MOST_SHOWN: Final = 3

SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        Check.COHORT_BELOW_MINIMUM: (
            "a sum is sure to hold the updates of {asked} clients that do not help the server, the clients' policies "
            "demand {allowed} (min-cohort); ask more clients (fraction_train, fraction_evaluate, min_train_nodes, "
            "min_evaluate_nodes of the strategy), or leave quorum at 0"
        ),
        Check.THRESHOLD_BELOW_MINIMUM: (
            "{asked} clients can remove a mask together, the clients' policies demand {allowed} (min-threshold); ask "
            "more clients"
        ),
        tasks.CORRUPT_BELOW_MINIMUM: (
            "the exchange withstands {asked} clients that help the server, the clients' policies demand {allowed} "
            "(min-corrupt); raise max-corrupt"
        ),
        tasks.MODEL_TOO_LARGE: "the model has {asked} bytes, the clients' policies allow {allowed} (max-model-bytes)",
        tasks.TOO_MANY_TENSORS: "the model has {asked} tensors, the clients' policies allow {allowed} (max-tensors)",
        tasks.TOO_LONG: (
            "the local work may take {asked} s, the clients' policies allow {allowed} (max-seconds); "
            "lower train-seconds"
        ),
        tasks.TOO_SHORT: (
            "{asked} s are left for the local work, clients demand {allowed}, half of train-seconds; bring "
            "train-seconds and the timeout of the strategy together"
        ),
        tasks.TOO_MANY_EXCHANGES: (
            "clients took part in {asked} exchanges, their policies allow {allowed} (max-exchanges-per-run, "
            "max-exchanges-per-day)"
        ),
        TOO_MANY_RELEASES: (
            "clients are in {asked} sums of this model and purpose, their policies allow {allowed} (max-releases); "
            "start from another model"
        ),
        DIFFERENCING: (
            "the sums of this model could together tell that over {asked} clients, the clients' policies demand "
            "{allowed} (min-cohort, and those that may collude); start from another model, or ask the same clients as "
            "before"
        ),
        tasks.NOISE_SHARES: "the noise is shared out among {asked} clients, a sum is sure to hold that of {allowed}",
        tasks.TOO_LITTLE_NOISE: (
            "one exchange costs epsilon {asked}, the clients' policies allow {allowed} (max-epsilon); "
            "ask for more noise"
        ),
        tasks.PRIVACY_BUDGET: (
            "the exchange would make epsilon {asked} of all runs together, the clients' policies allow {allowed} "
            "(max-epsilon)"
        ),
        tasks.PRIVACY_REQUIRED: "the clients' policies allow no sum without noise (max-epsilon); set dp-epsilon",
        tasks.PLAIN_NOT_ALLOWED: (
            "the clients' policies allow no update that the server can read; leave aggregation at secure, or their "
            "owners write allow-plain = true"
        ),
        tasks.AGREEMENT_NOT_ALLOWED: (
            "keys without ML-KEM are not allowed by the clients' policies; leave key-agreement at auto, or their "
            "owners write allow-x25519 = true"
        ),
        CONFIG_NOT_ALLOWED: (
            "the run sets it otherwise than the app that the owners installed; leave it as it is, or they write a line "
            "allow-config for it into policy.toml, which their own logs show"
        ),
    }
)
"""By check; those with numbers are `fedcore.wire.NUMBERED_CHECKS`."""


def describe(refusal: WithdrawIn | ProtocolViolation) -> str:
    """One refusal as an operator reads it: the check, what it failed on, and a sentence."""
    name = f"{refusal.check} {refusal.subject}".rstrip()
    sentence = SENTENCES.get(refusal.check, "")
    if refusal.asked is None or refusal.allowed is None:
        return name if not sentence or "{asked}" in sentence else f"{name}: {sentence}"
    return f"{name}: {sentence.format(asked=_number(refusal.asked), allowed=_number(refusal.allowed))}"


def refused_by_all(refusals: Iterable[WithdrawIn | ProtocolViolation]) -> str:
    """Why no client takes part in an exchange."""
    return f"every client refused: {_some(refusals)}"


def refused_by_some(refusals: Iterable[WithdrawIn | ProtocolViolation]) -> str:
    """Why some clients do not take part; "" where no check says so."""
    named = [refusal for refusal in refusals if refusal.check in SENTENCES]
    return f"{len(named)} refused: {_some(named)}" if named else ""


def _some(refusals: Iterable[WithdrawIn | ProtocolViolation]) -> str:
    texts = sorted({describe(refusal) for refusal in refusals})
    more = f"; and {len(texts) - _MOST_SHOWN} more" if len(texts) > _MOST_SHOWN else ""
    return "; ".join(texts[:_MOST_SHOWN]) + more


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.4g}"
