"""Whether this client takes part in what the server asks: checks of a task before anything is answered.

The names of the checks are fixed, as in `fedcore.secagg.Check`; these come before the protocol starts:

| check                   | stops                                                                          |
| ----------------------- | ------------------------------------------------------------------------------ |
| app-mismatch            | running an app that the owner did not install                                  |
| plain-not-allowed       | sending an update that the server can read                                     |
| privacy-required        | a sum without noise, where the owner insists on differential privacy           |
| noise-shares            | noise that is shared out among more clients than a sum is sure to have         |
| too-little-noise        | one exchange that alone reveals more than the owner allows                     |
| privacy-budget          | an exchange that would make all of them together reveal more than that         |
| own-id-missing          | a task for a cohort without this client                                        |
| duplicate-id            | one client that counts as two                                                  |
| off-roster              | a cohort with clients that the federation's authority never signed             |
| cohort-below-minimum    | a sum over so few clients that it tells too much                               |
| threshold-below-minimum | a threshold below the owner's                                                  |
| corrupt-below-minimum   | a round that withstands fewer colluding clients than the owner demands         |
| agreement-not-allowed   | a key agreement that a later quantum computer could open                       |
| bad-parameters          | parameters that contradict each other, such as 2t <= n                         |
| encoding-refused        | an encoding that is none, that could wrap, or for fewer clients than the cohort |
| layout-mismatch         | an encoding for another model than the one that was sent                       |
| model-missing           | training without a model                                                       |
| model-digest            | another model than the announced one                                           |
| model-malformed         | a model that is no safetensors file                                            |
| exchange-reused         | a second time in one exchange (`client_app.ledger`)                            |

How the local work failed has fixed names too: `client_app.ranks.failures`.
"""

from __future__ import annotations

from typing import Final

from client_app.eligibility import NotEligible
from client_app.ranks.failures import AppFailed, RankFailed
from fedcore.codec import AnyEncoding, release_of
from fedcore.errors import (
    AppError,
    ConfigurationError,
    DataError,
    EncodingError,
    FedcoreError,
    ProtocolViolation,
    Refused,
    RoundFailed,
    ServerUnreachable,
    StorageFull,
    Unauthorized,
    WorkerDied,
)
from fedcore.exchange import encoding_of, round_parameters, smallest_honest_cohort
from fedcore.federation import ClientKit, Policy
from fedcore.privacy import Accountant
from fedcore.secagg import Agreement, Check, RoundParameters, corrupt_clients
from fedcore.state import ModelState
from fedcore.wire import ProblemKind, Task, WithdrawalReason, WithdrawIn

APP_MISMATCH: Final = "app-mismatch"
PLAIN_NOT_ALLOWED: Final = "plain-not-allowed"
CORRUPT_BELOW_MINIMUM: Final = "corrupt-below-minimum"
AGREEMENT_NOT_ALLOWED: Final = "agreement-not-allowed"
PRIVACY_REQUIRED: Final = "privacy-required"
NOISE_SHARES: Final = "noise-shares"
TOO_LITTLE_NOISE: Final = "too-little-noise"
PRIVACY_BUDGET: Final = "privacy-budget"
_OVER: Final = frozenset(
    {ProblemKind.STALE_STEP, ProblemKind.ROUND_FAILED, ProblemKind.NOT_FOUND, ProblemKind.NOT_IN_COHORT}
)
"""Problems that tell a client that the exchange goes on without it, or not at all."""
_POLICY: Final = frozenset(
    {
        PLAIN_NOT_ALLOWED,
        CORRUPT_BELOW_MINIMUM,
        AGREEMENT_NOT_ALLOWED,
        PRIVACY_REQUIRED,
        TOO_LITTLE_NOISE,
        PRIVACY_BUDGET,
        Check.COHORT_BELOW_MINIMUM,
        Check.THRESHOLD_BELOW_MINIMUM,
    }
)


def check_task(task: Task, kit: ClientKit, app_sha256: str) -> None:
    """Refuse a task that the owner, the roster or the protocol does not allow; raises ProtocolViolation."""
    _check_app(task, app_sha256)
    _check_cohort(task, kit)
    if task.trains and task.model is None:
        raise ProtocolViolation("model-missing", "the server asks for training and names no model")
    if task.aggregation == "plain":
        if not kit.policy.allow_plain:
            raise ProtocolViolation(
                PLAIN_NOT_ALLOWED,
                "the server could read this client's update; its owner would have to set allow-plain = true "
                "in policy.toml",
            )
        return
    _check_protection(task, kit)
    _sound_encoding(task)
    # What the parameters say of each other does not depend on the model's bytes, which come next.
    derive_parameters(task, kit, None)


def check_encoding(task: Task, model: ModelState | None) -> AnyEncoding:
    """The encoding of a secure task, when it is sound and fits the model that this client received."""
    encoding = _sound_encoding(task)
    if encoding.n_max < len(task.cohort):
        raise ProtocolViolation(
            "encoding-refused", f"the encoding is for {encoding.n_max} clients, the cohort has {len(task.cohort)}"
        )
    layout = model.layout if model is not None and task.trains else None
    if (layout is None) != (encoding.layout is None):
        raise ProtocolViolation("layout-mismatch", "the encoding and the task disagree on whether a model is trained")
    if layout is not None and encoding.layout is not None:
        try:
            layout.check_same(encoding.layout, what="the announced encoding")
        except EncodingError as error:
            raise ProtocolViolation("layout-mismatch", str(error)) from None
    return encoding


def _sound_encoding(task: Task) -> AnyEncoding:
    try:
        return encoding_of(task)
    except ConfigurationError as error:
        raise ProtocolViolation("encoding-refused", str(error)) from None


def check_privacy(task: Task, encoding: AnyEncoding, policy: Policy, spent: Accountant) -> None:
    """Refuse an exchange that reveals more about this client than its owner allows; raises ProtocolViolation.

    What it reveals follows from the announced noise alone, which ctx binds, and from what this client has `spent`.
    """
    release = release_of(encoding)
    if release is None:
        if policy.max_epsilon:
            raise ProtocolViolation(
                PRIVACY_REQUIRED, f"the sum has no noise, the policy allows epsilon {policy.max_epsilon:g} at most"
            )
        return
    if release.shares > (honest := smallest_honest_cohort(task)):
        raise ProtocolViolation(
            NOISE_SHARES,
            f"the noise is shared out among {release.shares} clients, a sum may hold those of {honest} only",
        )
    if not policy.max_epsilon:
        return
    if (alone := Accountant((release,)).epsilon(policy.delta)) > policy.max_epsilon:
        raise ProtocolViolation(
            TOO_LITTLE_NOISE, f"this exchange alone costs epsilon {alone:.4g}, the policy allows {policy.max_epsilon:g}"
        )
    if (after := spent.epsilon(policy.delta, further=release)) > policy.max_epsilon:
        raise ProtocolViolation(
            PRIVACY_BUDGET,
            f"epsilon {spent.epsilon(policy.delta):.4g} is spent, this exchange would make it {after:.4g}; "
            f"the policy allows {policy.max_epsilon:g}",
        )


def derive_parameters(task: Task, kit: ClientKit, model_hash: bytes | None) -> RoundParameters:
    """What ctx is made of, from this client's own copies of the roster and the model."""
    try:
        return round_parameters(task, federation=kit.federation, roster_hash=kit.roster.hash(), model_hash=model_hash)
    except ConfigurationError as error:
        raise ProtocolViolation(Check.BAD_PARAMETERS, str(error)) from None


def withdrawal_for(error: BaseException) -> WithdrawIn | None:
    """What the server is told about `error`: a fixed reason and the name of a check, never its text.

    None where there is nothing to tell: the server ended the exchange itself, or cannot be reached.
    """
    match error:
        case ProtocolViolation(check=check):
            return WithdrawIn(reason=_reason(check), check=check)
        case AppError() | DataError() | EncodingError() | WorkerDied():
            return _local_failure(error)
        case NotEligible():
            return WithdrawIn(reason=WithdrawalReason.NOT_ELIGIBLE)
        case StorageFull():
            return WithdrawIn(reason=WithdrawalReason.STOPPED, check="storage-full")
        case Refused(kind=kind) if kind in _OVER:
            return None
        case Refused(kind=kind):  # an unknown kind could be text of the server's choice
            check = f"server-{kind}" if kind in set(ProblemKind) else "refused"
            return WithdrawIn(reason=WithdrawalReason.STOPPED, check=check)
        case ServerUnreachable() | Unauthorized():
            return None
        case RoundFailed():
            return WithdrawIn(reason=WithdrawalReason.STOPPED, check="timeout")
    return WithdrawIn(reason=WithdrawalReason.STOPPED, check="internal")


def _local_failure(error: FedcoreError) -> WithdrawIn:
    match error:
        case AppFailed(check=check):
            return WithdrawIn(reason=WithdrawalReason.APP_FAILED, check=check)
        case RankFailed(check=check):
            return WithdrawIn(reason=WithdrawalReason.WORKER_DIED, check=check)
        case DataError():
            return WithdrawIn(reason=WithdrawalReason.APP_FAILED)
        case AppError():
            return WithdrawIn(reason=WithdrawalReason.WRONG_RECORDS)
        case EncodingError():
            return WithdrawIn(reason=WithdrawalReason.UPDATE_REFUSED)
    return WithdrawIn(reason=WithdrawalReason.WORKER_DIED)


def _reason(check: str) -> WithdrawalReason:
    if check in _POLICY:
        return WithdrawalReason.POLICY
    return WithdrawalReason.APP_MISMATCH if check == APP_MISMATCH else WithdrawalReason.PROTOCOL_VIOLATION


def _check_app(task: Task, app_sha256: str) -> None:
    if task.app_sha256 != app_sha256:
        raise ProtocolViolation(
            APP_MISMATCH,
            f"the run is of app {task.app_sha256[:12]}…, this client's owner installed {app_sha256[:12]}…",
        )


def _check_cohort(task: Task, kit: ClientKit) -> None:
    if kit.client_id not in task.cohort:
        raise ProtocolViolation(Check.OWN_ID_MISSING, "the task is for a cohort without this client")
    if len(set(task.cohort)) != len(task.cohort):
        raise ProtocolViolation(Check.DUPLICATE_ID, "the cohort names one client twice")
    if strangers := sorted(set(task.cohort) - set(kit.roster.keys)):
        raise ProtocolViolation(Check.OFF_ROSTER, f"client {strangers[0]} of the cohort is not on the roster")


def _check_protection(task: Task, kit: ClientKit) -> None:
    n, policy = len(task.cohort), kit.policy
    if task.quorum < policy.min_cohort:
        raise ProtocolViolation(
            Check.COHORT_BELOW_MINIMUM,
            f"the exchange goes on with {task.quorum} of {n} clients, the policy demands {policy.min_cohort}",
        )
    protection = task.protection
    if protection is None:
        raise ProtocolViolation(Check.BAD_PARAMETERS, "a secure task must name its graph, threshold and key agreement")
    if protection.threshold < policy.min_threshold:
        raise ProtocolViolation(
            Check.THRESHOLD_BELOW_MINIMUM,
            f"the threshold is {protection.threshold}, the policy demands {policy.min_threshold}",
        )
    if protection.corrupt < (least := corrupt_clients(n, policy.min_corrupt)):
        raise ProtocolViolation(
            CORRUPT_BELOW_MINIMUM,
            f"the exchange withstands {protection.corrupt} clients that help the server, the policy demands {least}",
        )
    if protection.agreement != Agreement.HYBRID and not policy.allow_x25519:
        raise ProtocolViolation(
            AGREEMENT_NOT_ALLOWED,
            "the keys would not withstand later quantum decryption; the owner would have to set allow-x25519 = true "
            "in policy.toml",
        )
