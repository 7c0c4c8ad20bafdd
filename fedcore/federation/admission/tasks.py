"""The checks of a task by itself, against the installed app, the owner's policy and the roster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fedcore.codec import Encoding
from fedcore.errors import ConfigurationError, ProtocolViolation
from fedcore.federation import Policy
from fedcore.federation.admission import checks
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.federation.admission.encodings import check_settings, sound_encoding
from fedcore.federation.admission.owner import ClientHistory, Owner
from fedcore.federation.admission.releases import check_numbers, check_releases
from fedcore.federation.roster import GAP, ROLLBACK
from fedcore.run.exchange import round_parameters
from fedcore.run.groups import is_draw
from fedcore.run.settings import JobSettings
from fedcore.secagg import Agreement, Check, RoundParameters, corrupt_clients
from fedcore.trees.limits import stated_limits
from fedcore.wire.tasks import Task, Version

LEAST_TIME: Final = 0.5
"""The least share of train-seconds that has to be left when a client gets a task."""


def check_frequency(task: Task, policy: Policy, ledger: ClientHistory) -> None:
    """Refuse to be asked more often than the owner allows; raises ProtocolViolation."""
    for count, most, what in (
        (ledger.entered_in(task.run), policy.max_exchanges_per_run, "of this run"),
        (ledger.entered_in_a_day(), policy.max_exchanges_per_day, "in 24 hours"),
    ):
        if count >= most:
            raise ProtocolViolation(
                checks.TOO_MANY_EXCHANGES,
                f"this client took part in {count} exchanges {what}, the policy allows {most}",
                asked=count,
                allowed=most,
            )
    check_releases(task, policy, ledger)


def check_task(task: Task, kit: Owner, app_sha256: str, agreed: AppAgreement) -> JobSettings:
    """Refuse a task that the owner, the roster or the protocol does not allow; raises ProtocolViolation.

    Returns the settings that the exchange is to follow.
    """
    _check_app(task, app_sha256)
    _check_roster(task, kit)
    settings = agreed.check(task, kit.policy)
    _check_bounds(task, kit.policy, settings)
    _check_trees(task, kit.policy)
    _check_weight(task, settings)
    _check_cohort(task, kit)
    if task.trains and task.model is None:
        raise ProtocolViolation("model-missing", "the server asks for training and names no model")
    if task.aggregation == "plain":
        if not kit.policy.allow_plain:
            raise _no_plain()
        return settings
    if is_draw(task):
        return settings  # nothing is summed in it; what follows is checked by itself
    _check_buffer(task, settings, kit.policy)
    _check_protection(task, kit)
    check_settings(task, sound_encoding(task), settings)
    # What the parameters say of each other does not depend on the model's bytes, which come next.
    derive_parameters(task, kit, None)
    return settings


def check_work(task: Task, kit: Owner, app_sha256: str, agreed: AppAgreement) -> None:
    """Refuse work for a later sum, as `check_task` refuses an exchange; raises ProtocolViolation."""
    _check_app(task, app_sha256)
    _check_roster(task, kit)
    settings = agreed.check(task, kit.policy)
    _check_bounds(task, kit.policy, settings)
    _check_weight(task, settings)
    if not kit.policy.allow_buffered:
        raise _no_buffer()
    if task.aggregation != "secure" or not settings.buffered:
        raise ProtocolViolation(checks.BUFFER_OFF_SETTINGS, "the run's settings have no work for later sums")
    if not task.trains or task.model is None:
        raise ProtocolViolation("model-missing", "work for a later sum is a training, and names its model")


def check_start(task: Task, client: int, own: Version | None) -> None:
    """Refuse a buffered exchange unless it says of this client's update what it began from; raises ProtocolViolation.

    Args:
        own: that; None if this client has no update that it could give.
    """
    if task.buffer is None:
        return
    start = task.buffer.starts[task.cohort.index(client)]
    if start != own:
        has = f"from version {own.number}" if own is not None else "none"
        raise ProtocolViolation(
            checks.START_MISMATCH,
            f"the exchange counts on an update from version {start.number} ({start.sha256[:12]}…), "
            f"this client has {has}",
        )


def refused_choices(
    run_config: Mapping[str, Any], settings: JobSettings, agreed: AppAgreement, policy: Policy, *, members: int
) -> Iterator[ProtocolViolation]:
    """Every refusal of what the person who starts a run decides: config and settings, and that updates can be read.

    Args:
        members: how many the federation has.
    """
    if settings.aggregation == "plain":
        if not policy.allow_plain:
            yield _no_plain()
    else:
        withstood, least = (corrupt_clients(members, share) for share in (settings.max_corrupt, policy.min_corrupt))
        if withstood < least:
            yield _too_few_corrupt(withstood, least)
        if settings.buffered and not policy.allow_buffered:
            yield _no_buffer()
    for change in agreed.changes_of_run(run_config, settings.for_clients()):
        if not change.allowed(policy):
            yield change.refusal()


def _no_plain() -> ProtocolViolation:
    return ProtocolViolation(
        checks.PLAIN_NOT_ALLOWED,
        "the server could read this client's update; its owner would have to set allow-plain = true in policy.toml",
    )


def _no_buffer() -> ProtocolViolation:
    return ProtocolViolation(
        checks.BUFFERED_NOT_ALLOWED,
        "a sum of updates that began from different models keeps this client's update from a server that follows the "
        "protocol, and not from one that lies; its owner would have to set allow-buffered = true in policy.toml",
    )


def _too_few_corrupt(withstood: int, least: int) -> ProtocolViolation:
    return ProtocolViolation(
        checks.CORRUPT_BELOW_MINIMUM,
        f"the exchange withstands {withstood} clients that help the server, the policy demands {least}",
        asked=withstood,
        allowed=least,
    )


def _check_buffer(task: Task, settings: JobSettings, policy: Policy) -> None:
    """A training of a buffered run sums updates that were made before, none of them too old."""
    if settings.buffered and task.trains and not policy.allow_buffered:
        raise _no_buffer()
    if (task.buffer is not None) != (task.trains and settings.buffered):
        raise ProtocolViolation(
            checks.BUFFER_OFF_SETTINGS, "the task and the settings disagree on what updates are summed"
        )
    if (buffer := task.buffer) is None:
        return
    check_numbers(task)
    for start in buffer.starts:
        if not 0 <= buffer.newest - start.number <= settings.max_staleness:
            raise ProtocolViolation(
                checks.BUFFER_OFF_SETTINGS,
                f"the sum holds an update from version {start.number}, the newest is {buffer.newest}; max-staleness is "
                f"{settings.max_staleness}",
            )


def derive_parameters(task: Task, kit: Owner, model_hash: bytes | None) -> RoundParameters:
    """What ctx is made of, from this client's own copies of the roster and the model."""
    try:
        return round_parameters(task, federation=kit.federation, roster_hash=kit.roster.hash(), model_hash=model_hash)
    except ConfigurationError as error:
        raise ProtocolViolation(Check.BAD_PARAMETERS, str(error)) from None


def _check_app(task: Task, app_sha256: str) -> None:
    if task.app_sha256 != app_sha256:
        raise ProtocolViolation(
            checks.APP_MISMATCH,
            f"the run is of app {task.app_sha256[:12]}…, this client's owner installed {app_sha256[:12]}…",
        )


def _check_roster(task: Task, kit: Owner) -> None:
    known = kit.roster.version
    if task.roster != known:
        raise ProtocolViolation(
            ROLLBACK if task.roster < known else GAP,
            f"the exchange uses roster {task.roster}, this client knows roster {known}",
        )


def _check_bounds(task: Task, policy: Policy, settings: JobSettings) -> None:
    size = task.model.size if task.model else 0
    if size > policy.max_model_bytes:
        raise ProtocolViolation(
            checks.MODEL_TOO_LARGE,
            f"the model has {size} bytes, the policy allows {policy.max_model_bytes}",
            asked=size,
            allowed=policy.max_model_bytes,
        )
    if task.seconds > policy.max_seconds:
        raise ProtocolViolation(
            checks.TOO_LONG,
            f"the local work may take {task.seconds:g} s, the policy allows {policy.max_seconds:g}",
            asked=task.seconds,
            allowed=policy.max_seconds,
        )
    # Who is not done in time contributes nothing, unseen: a short time would choose whom a sum is made of.
    least = LEAST_TIME * settings.train_seconds
    if task.aggregation == "secure" and task.seconds < least and not policy.report_failures:
        raise ProtocolViolation(
            checks.TOO_SHORT,
            f"the local work may take {task.seconds:g} s, but {least:g} of the {settings.train_seconds:g} s of "
            "train-seconds have to be left",
            asked=task.seconds,
            allowed=least,
        )
    layout = task.encoding.layout if task.encoding is not None else None
    if layout is not None and len(layout.specs) > policy.max_tensors:
        raise ProtocolViolation(
            checks.TOO_MANY_TENSORS,
            f"the model has {len(layout.specs)} tensors, the policy allows {policy.max_tensors}",
            asked=len(layout.specs),
            allowed=policy.max_tensors,
        )


def _check_trees(task: Task, policy: Policy) -> None:
    """Boosted trees are as shallow, and their nodes as large, as the owner demands, by what the message states.

    The app checks that the message states what the model's settings are. Nobody but the server knows how many rows a
    node holds; but these settings bind a server that follows the protocol.
    """
    for depth, rows in stated_limits(task.message_type, task.configs):
        if depth > policy.max_tree_depth:
            raise ProtocolViolation(
                checks.TREE_TOO_DEEP,
                f"the trees may have a depth of {depth:g}, the policy allows {policy.max_tree_depth}",
                asked=depth,
                allowed=policy.max_tree_depth,
            )
        if rows < policy.min_rows_in_node:
            raise ProtocolViolation(
                checks.NODE_TOO_SMALL,
                f"a node of the trees may hold {rows:g} rows, the policy demands {policy.min_rows_in_node}",
                asked=rows,
                allowed=policy.min_rows_in_node,
            )


def _check_weight(task: Task, settings: JobSettings) -> None:
    """Means are weighted by what the agreed settings name: another metric could be zero for all but one client."""
    if task.aggregation == "secure" and not task.queries and task.weight_key != settings.weight_key:
        raise ProtocolViolation(
            checks.WEIGHT_KEY,
            f"the task weighs clients by {task.weight_key[:60]!r}, the settings of the run say "
            f"{settings.weight_key[:60]!r}",
            subject=task.weight_key[:60] if task.weight_key.isprintable() else "",
        )


def _check_cohort(task: Task, kit: Owner) -> None:
    if kit.client_id not in task.cohort:
        raise ProtocolViolation(Check.OWN_ID_MISSING, "the task is for a cohort without this client")
    if len(set(task.cohort)) != len(task.cohort):
        raise ProtocolViolation(Check.DUPLICATE_ID, "the cohort names one client twice")
    if strangers := sorted(set(task.cohort) - set(kit.roster.keys)):
        raise ProtocolViolation(Check.OFF_ROSTER, f"client {strangers[0]} of the cohort is not on the roster")


def _check_protection(task: Task, kit: Owner) -> None:
    policy, protection = kit.policy, task.protection
    if protection is None:
        raise ProtocolViolation(Check.BAD_PARAMETERS, "a secure task must name its graph, threshold and key agreement")
    least = corrupt_clients(len(kit.roster.members), policy.min_corrupt)
    if protection.corrupt < least:
        raise _too_few_corrupt(protection.corrupt, least)
    # With differential privacy who contributes nothing still adds its share of the noise.
    failures = task.encoding.failures if isinstance(task.encoding, Encoding) else 0
    if (honest := task.quorum - protection.corrupt - failures) < policy.min_cohort:
        raise ProtocolViolation(
            Check.COHORT_BELOW_MINIMUM,
            f"the exchange continues with {task.quorum} of {len(task.cohort)} clients; {failures} of them may "
            f"contribute nothing, and {honest} of the others do not help the server; the policy "
            f"demands {policy.min_cohort}",
            asked=max(0, honest),
            allowed=policy.min_cohort,
        )
    if protection.threshold < policy.min_threshold:
        raise ProtocolViolation(
            Check.THRESHOLD_BELOW_MINIMUM,
            f"the threshold is {protection.threshold}, the policy demands {policy.min_threshold}",
            asked=protection.threshold,
            allowed=policy.min_threshold,
        )
    if protection.agreement != Agreement.HYBRID and not policy.allow_x25519:
        raise ProtocolViolation(
            checks.AGREEMENT_NOT_ALLOWED,
            "the keys would not withstand later quantum decryption; the owner would have to set allow-x25519 = true "
            "in policy.toml",
        )
