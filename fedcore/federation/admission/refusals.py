"""Refusals of clients in an operator's words: the check, its two numbers, and the remedy.

A client sends the server the fixed name of a check and, if the check depends on the task and the policy alone, the
number that was asked and the one that its owner allows. The server and the simulator make the sentences from these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from fedcore.errors import ProtocolViolation
from fedcore.federation.admission import checks
from fedcore.secagg import Check
from fedcore.wire.uploads import WithdrawIn

Refusal: TypeAlias = WithdrawIn | ProtocolViolation

_MOST_SHOWN: Final = 3
_MOST_NAMED: Final = 50

_NO_OTHER_WAY: Final = (
    "If neither is possible, each of these owners has to agree: set allow-differencing = true in policy.toml and "
    "restart the client. It then no longer checks what sums reveal together: anybody who reads two that differ in one "
    "client can subtract them and learn what that client sent"
)
QUERY_DIFFERENCING: Final = (
    "the sums of statistics of all runs together could reveal the sum over {asked} clients, and the policies "
    "demand {allowed} (min-cohort, and those that may collude). Ask the same clients as before. Once members came or "
    "left, they can be asked again only if those who stay, those who came and those who left are each none or at least "
    "{allowed}; if not, take the statistics of an earlier run (--statistics-from RUN), or continue from its model "
    "(--initial-model FILE), which has them, so that nobody is asked. " + _NO_OTHER_WAY
)
"""The sentence of `differencing` for queries, which have no model."""

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
        checks.CORRUPT_BELOW_MINIMUM: (
            "the exchange withstands {asked} clients that help the server, the clients' policies demand {allowed} "
            "(min-corrupt); raise max-corrupt"
        ),
        checks.MODEL_TOO_LARGE: "the model has {asked} bytes, the clients' policies allow {allowed} (max-model-bytes)",
        checks.TOO_MANY_TENSORS: "the model has {asked} tensors, the clients' policies allow {allowed} (max-tensors)",
        checks.TOO_LONG: (
            "the local work may take {asked} s, the clients' policies allow {allowed} (max-seconds); "
            "lower train-seconds"
        ),
        checks.TOO_SHORT: (
            "{asked} s are left for the local work, clients demand {allowed}, half of train-seconds; bring "
            "train-seconds and the timeout of the strategy together"
        ),
        checks.TOO_MANY_EXCHANGES: (
            "clients took part in {asked} exchanges, their policies allow {allowed} (max-exchanges-per-run, "
            "max-exchanges-per-day)"
        ),
        checks.TOO_MANY_RELEASES: (
            "clients are in {asked} sums of this model and purpose, their policies allow {allowed} (max-releases); "
            "start from another model: an app that starts again and again takes another seed each time. Or the owners "
            "raise max-releases in policy.toml"
        ),
        checks.TREE_TOO_DEEP: (
            "the trees may have a depth of {asked}, the clients' policies allow {allowed} (max-tree-depth); set "
            "max-depth to that"
        ),
        checks.NODE_TOO_SMALL: (
            "a node of the trees may hold as few as {asked} rows, the clients' policies demand {allowed} "
            "(min-rows-in-node); raise min-child-weight: a row counts at most 1 in it with numbers, 0.5 with "
            "multi:softprob, 0.25 with binary:logistic"
        ),
        checks.NOT_PLANNED: (
            "the study plan of the clients' app has no such question, or it was asked as often as the plan says. Ask "
            "what plan.toml has (`fedcore study APP`); another plan is another app, which the owners approve"
        ),
        checks.DIFFERENCING: (
            "the sums of this model could together tell that over {asked} clients, the clients' policies demand "
            "{allowed} (min-cohort, and those that may collude); start from another model (another seed, which the "
            "owners accept with the app or by allow-config, or --initial-model), or ask the same clients as before. "
            + _NO_OTHER_WAY
        ),
        checks.FIRST_MODEL: (
            "the clients take part only in a run that begins with a model that they can trace: the app's own, one that "
            "was trained or tested here in an earlier run, or one that their policies name (first-models). Run without "
            "--initial-model; or every owner adds this SHA-256 to first-models in policy.toml and restarts the client. "
            "If the run has no initial model, `fedcore check` says whether the app's own can be repeated"
        ),
        checks.OTHER_QUESTION: (
            "something else was asked about the same model before: another round, message, weight or setting, and two "
            "answers about one model could together reveal what each hides. In a further run ask the same, or begin "
            "with another model: the last one of an earlier run (--initial-model), or that of another seed. If a round "
            "left the model exactly as it was (a learning rate of 0, as a rate that falls to 0 ends with), stop before "
            "it: fewer rounds, patience, or a rate that stays above 0. If one key has to vary, the owners write a line "
            "allow-config for it into policy.toml (server-round for the round); it counts for models that were not "
            "asked about before"
        ),
        checks.OTHER_LAYOUT: (
            "the model has other tensors than the models before it in this run: the names, shapes, dtypes and order of "
            "what a ServerApp sends in one type of message stay. If the app trains two models, each needs a message "
            "type of its own (such as train.large)"
        ),
        checks.WEIGHT_KEY: (
            "the strategy weighs clients by another metric than the app's settings say; write weight-key into "
            "[tool.fedcore] of the app's pyproject.toml, and have the owners approve that app"
        ),
        checks.NOISE_SHARES: "the noise is shared out among {asked} clients, a sum is sure to hold that of {allowed}",
        checks.TOO_LITTLE_NOISE: (
            "one exchange costs epsilon {asked}, the clients' policies allow {allowed} (max-epsilon, for "
            "a row max-row-epsilon); ask for more noise"
        ),
        checks.PRIVACY_BUDGET: (
            "the exchange would make epsilon {asked} of all runs together, the clients' policies allow {allowed} "
            "(max-epsilon, for a row max-row-epsilon)"
        ),
        checks.PRIVACY_REQUIRED: (
            "the clients' policies allow no sum without noise (max-epsilon, max-row-epsilon); set dp-epsilon. Noise "
            "for rows, as boosted trees have it with epsilon, needs max-row-epsilon in these policies"
        ),
        checks.PLAIN_NOT_ALLOWED: (
            "the clients' policies allow no update that the server can read; leave aggregation at secure, or their "
            "owners write allow-plain = true"
        ),
        checks.BUFFERED_NOT_ALLOWED: (
            "the clients' policies allow no sum of updates that began from different models; leave asynchrony at none, "
            "or their owners write allow-buffered = true"
        ),
        checks.AGREEMENT_NOT_ALLOWED: (
            "keys without ML-KEM are not allowed by the clients' policies; leave key-agreement at auto, or their "
            "owners write allow-x25519 = true"
        ),
        checks.CONFIG_NOT_ALLOWED: (
            "the run sets it otherwise than the app that the owners installed; leave it as it is, or they write a line "
            "allow-config for it into policy.toml, which their own logs show"
        ),
        checks.MESSAGE_NOT_ALLOWED: (
            "the strategy's message sets it to what the clients' policies do not allow (allow-config), whatever the "
            "run says; have the strategy send what they allow, as their own logs show, or their owners widen it"
        ),
    }
)
"""By check; those with numbers are `fedcore.wire.uploads.NUMBERED_CHECKS`."""


def describe(refusal: Refusal, *, queries: bool = False) -> str:
    """One refusal as an operator reads it: the check, what it failed on, and a sentence.

    Args:
        queries: as `Task.queries`.
    """
    name = f"{refusal.check} {refusal.subject}".rstrip()
    sentence = SENTENCES.get(refusal.check, "")
    if queries and refusal.check == checks.DIFFERENCING:
        sentence = QUERY_DIFFERENCING
    if refusal.asked is None or refusal.allowed is None:
        return name if not sentence or "{asked}" in sentence else f"{name}: {sentence}"
    return f"{name}: {sentence.format(asked=_number(refusal.asked), allowed=_number(refusal.allowed))}"


def refused_by_all(refusals: Iterable[Refusal], *, queries: bool = False) -> str:
    """Why no client takes part in an exchange."""
    texts = sorted({describe(refusal, queries=queries) for refusal in refusals})
    return f"every client refused: {_some(texts)}"


def refused_by_some(refusals: Mapping[str, Refusal], *, queries: bool = False) -> str:
    """Why some clients, by name, do not take part; "" if no check says so."""
    by_text: dict[str, list[str]] = {}
    for name, refusal in refusals.items():
        if refusal.check in SENTENCES:
            by_text.setdefault(describe(refusal, queries=queries), []).append(name)
    return _some([f"{len(who)} refused ({_names(who)}): {text}" for text, who in sorted(by_text.items())])


def _names(who: Sequence[str]) -> str:
    more = f" and {len(who) - _MOST_NAMED} more" if len(who) > _MOST_NAMED else ""
    return ", ".join(sorted(who)[:_MOST_NAMED]) + more


def _some(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - _MOST_SHOWN} more" if len(texts) > _MOST_SHOWN else ""
    return "; ".join(texts[:_MOST_SHOWN]) + more


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.4g}"
