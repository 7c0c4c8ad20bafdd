"""Whether this client takes part in what the server asks: checks of a task before anything is answered.

The names of the checks are fixed, as in `fedcore.secagg.Check`; these come before the protocol starts:

| check                   | stops                                                                          |
| ----------------------- | ------------------------------------------------------------------------------ |
| app-mismatch            | running an app that the owner did not install                                  |
| config-not-allowed      | a question in a number: config or settings other than the app's (`agreed`)     |
| message-not-allowed     | the same in a message, under a key for which the owner has a rule (`agreed`)   |
| model-too-large         | a model that fills the disk                                                    |
| too-many-tensors        | an encoding that takes for ever to read                                        |
| too-long                | local work without an end                                                      |
| too-short               | a time that only the quick can keep, to see who is left out of the sum         |
| too-many-exchanges      | being asked until something is known, in a run or in a day                     |
| too-many-releases       | the same of one model and purpose (`releases`)                                 |
| differencing            | sums from one model that together tell the sum of a few clients                |
| plain-not-allowed       | sending an update that the server can read                                     |
| privacy-required        | a sum without noise, where the owner insists on differential privacy           |
| noise-shares            | noise that is shared out among more clients than a sum is sure to have         |
| too-little-noise        | one exchange that alone reveals more than the owner allows                     |
| privacy-budget          | an exchange that would make all of them together reveal more than that         |
| own-id-missing          | a task for a cohort without this client                                        |
| duplicate-id            | one client that counts as two                                                  |
| roster-rollback         | an exchange under an older roster, on which a revoked client may still stand    |
| roster-gap              | an exchange under a roster that the server does not show                       |
| off-roster              | a cohort with clients that the federation's authority never signed             |
| cohort-below-minimum    | a sum over so few clients that it tells too much                               |
| threshold-below-minimum | a threshold below the owner's                                                  |
| corrupt-below-minimum   | a round that withstands fewer colluding clients than the owner demands         |
| agreement-not-allowed   | a key agreement that a later quantum computer could open                       |
| bad-parameters          | parameters that contradict each other, such as 2t <= n                         |
| encoding-refused        | an encoding that is none, that could wrap, or for fewer clients than the cohort |
| encoding-off-settings   | an encoding or noise that does not follow from the settings of the run         |
| scales-off-rule         | the same update asked for at scales of the server's choice, or small tensors apart|
| layout-mismatch         | an encoding for another model than the one that was sent                       |
| model-missing           | training without a model                                                       |
| message-missing         | a plain exchange without a message                                             |
| model-digest            | another model than the announced one                                           |
| model-malformed         | a model that is no safetensors file                                            |
| buffer-off-settings     | updates that are too old, or a buffer where the settings have none, or none     |
| start-mismatch          | an update that is said to begin from another model than it did                 |
| update-reused           | an update of a buffer in a second sum (`releases`)                             |
| wrong-group             | a group that the server chose, or a training in one sum where groups are agreed |
| too-many-draws          | draws, one after the other, until the groups are as the server likes them      |
| exchange-reused         | a second time in one exchange (`client_app.records.ledger`)                            |

The agent and the simulator call the same functions. How the local work failed has fixed names too:
`client_app.ranks.failures`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from fedcore.codec import AnyEncoding, Encoding, check_scales, private_encoding, release_of, rotation_seed
from fedcore.codec.privacy import Accountant, Release
from fedcore.errors import ConfigurationError, EncodingError, ProtocolViolation
from fedcore.federation import Policy
from fedcore.federation.admission.agreed import AppAgreement
from fedcore.federation.admission.owner import ExchangeHistory, Owner
from fedcore.federation.admission.releases import check_releases
from fedcore.federation.roster import GAP, ROLLBACK
from fedcore.run.encoding_plan import codec_settings
from fedcore.run.exchange import encoding_of, round_parameters
from fedcore.run.groups import is_draw
from fedcore.run.privacy_budget import privacy_plan
from fedcore.run.quorum import noise_clients
from fedcore.run.settings import JobSettings
from fedcore.secagg import Agreement, Check, RoundParameters, corrupt_clients
from fedcore.state import ModelState
from fedcore.wire.control import Task, Version

MODEL_TOO_LARGE: Final = "model-too-large"
TOO_MANY_TENSORS: Final = "too-many-tensors"
TOO_LONG: Final = "too-long"
TOO_SHORT: Final = "too-short"
TOO_MANY_EXCHANGES: Final = "too-many-exchanges"
ENCODING_OFF_SETTINGS: Final = "encoding-off-settings"
APP_MISMATCH: Final = "app-mismatch"
PLAIN_NOT_ALLOWED: Final = "plain-not-allowed"
SCALES_OFF_RULE: Final = "scales-off-rule"
CORRUPT_BELOW_MINIMUM: Final = "corrupt-below-minimum"
AGREEMENT_NOT_ALLOWED: Final = "agreement-not-allowed"
PRIVACY_REQUIRED: Final = "privacy-required"
NOISE_SHARES: Final = "noise-shares"
TOO_LITTLE_NOISE: Final = "too-little-noise"
PRIVACY_BUDGET: Final = "privacy-budget"
BUFFER_OFF_SETTINGS: Final = "buffer-off-settings"
START_MISMATCH: Final = "start-mismatch"
LEAST_TIME: Final = 0.5
"""Share of train-seconds that is left of it at least when a client hears of a task."""
_ENDLESS: Final = 1e18
"""Stands for an epsilon without bound where a number is told."""
_ROUNDING: Final = 1e-3
"""By how much less noise may be announced than this machine computes; the multiplier has four digits."""


def check_frequency(task: Task, policy: Policy, ledger: ExchangeHistory) -> None:
    """Refuse to be asked more often than the owner allows; raises ProtocolViolation."""
    for count, most, what in (
        (ledger.entered_in(task.run), policy.max_exchanges_per_run, "of this run"),
        (ledger.entered_in_a_day(), policy.max_exchanges_per_day, "in 24 hours"),
    ):
        if count >= most:
            raise ProtocolViolation(
                TOO_MANY_EXCHANGES,
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
    _check_cohort(task, kit)
    if task.trains and task.model is None:
        raise ProtocolViolation("model-missing", "the server asks for training and names no model")
    if task.aggregation == "plain":
        if not kit.policy.allow_plain:
            raise _no_plain()
        return settings
    if is_draw(task):
        return settings  # nothing is summed in it; what follows is checked by itself
    _check_buffer(task, settings)
    _check_protection(task, kit)
    _check_settings(task, _sound_encoding(task), settings)
    # What the parameters say of each other does not depend on the model's bytes, which come next.
    derive_parameters(task, kit, None)
    return settings


def check_work(task: Task, kit: Owner, app_sha256: str, agreed: AppAgreement) -> None:
    """Refuse work for a later sum, as `check_task` refuses an exchange; raises ProtocolViolation."""
    _check_app(task, app_sha256)
    _check_roster(task, kit)
    settings = agreed.check(task, kit.policy)
    _check_bounds(task, kit.policy, settings)
    if task.aggregation != "secure" or not settings.buffered:
        raise ProtocolViolation(BUFFER_OFF_SETTINGS, "the run's settings have no work for later sums")
    if not task.trains or task.model is None:
        raise ProtocolViolation("model-missing", "work for a later sum is a training, and names its model")


def check_start(task: Task, client: int, own: Version | None) -> None:
    """Refuse a buffered exchange unless it says of this client's update what it began from; raises ProtocolViolation.

    own: that; None where this client has no update that it could give.
    """
    if task.buffer is None:
        return
    said = task.buffer.starts[task.cohort.index(client)]
    if said != own:
        has = f"from version {own.number}" if own is not None else "none"
        raise ProtocolViolation(
            START_MISMATCH,
            f"the exchange counts on an update from version {said.number} ({said.sha256[:12]}…), this client has {has}",
        )


def refused_choices(
    run_config: Mapping[str, Any], settings: JobSettings, agreed: AppAgreement, policy: Policy, *, members: int
) -> Iterator[ProtocolViolation]:
    """Every refusal of what whoever starts a run decides: its config and settings, and that updates can be read.

    members: how many the federation has.
    """
    if settings.aggregation == "plain":
        if not policy.allow_plain:
            yield _no_plain()
    else:
        withstood, least = (corrupt_clients(members, share) for share in (settings.max_corrupt, policy.min_corrupt))
        if withstood < least:
            yield _too_few_corrupt(withstood, least)
    for change in agreed.changes_of_run(run_config, settings.for_clients()):
        if not change.allowed(policy):
            yield change.refusal()


def _no_plain() -> ProtocolViolation:
    return ProtocolViolation(
        PLAIN_NOT_ALLOWED,
        "the server could read this client's update; its owner would have to set allow-plain = true in policy.toml",
    )


def _too_few_corrupt(withstood: int, least: int) -> ProtocolViolation:
    return ProtocolViolation(
        CORRUPT_BELOW_MINIMUM,
        f"the exchange withstands {withstood} clients that help the server, the policy demands {least}",
        asked=withstood,
        allowed=least,
    )


def check_encoding(task: Task, model: ModelState | None) -> AnyEncoding:
    """The encoding of a secure task, when it is sound and fits the model that this client received."""
    encoding = _sound_encoding(task)
    if encoding.n_max != len(task.cohort):
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


def follow_scales(task: Task, encoding: AnyEncoding, ledger: ExchangeHistory) -> None:
    """Remember the scales of an exchange, durably; raises ProtocolViolation where they break their rule."""
    if not isinstance(encoding, Encoding) or encoding.layout is None:
        return
    layout = encoding.layout.digest().hex()
    try:
        memory = check_scales(encoding, ledger.scales(task.run, layout), exchange=task.exchange)
    except EncodingError as error:
        raise ProtocolViolation(SCALES_OFF_RULE, str(error)) from None
    ledger.remember_scales(task.run, layout, memory)


def _check_buffer(task: Task, settings: JobSettings) -> None:
    """A training of a buffered run sums updates that were made before, none of them too old."""
    if (task.buffer is not None) != (task.trains and settings.buffered):
        raise ProtocolViolation(BUFFER_OFF_SETTINGS, "the task and the settings disagree on what updates are summed")
    if (buffer := task.buffer) is None:
        return
    for start in buffer.starts:
        if not 0 <= buffer.newest - start.number <= settings.max_staleness:
            raise ProtocolViolation(
                BUFFER_OFF_SETTINGS,
                f"the sum holds an update from version {start.number}, the newest is {buffer.newest}; max-staleness is "
                f"{settings.max_staleness}",
            )


def _check_settings(task: Task, encoding: AnyEncoding, settings: JobSettings) -> None:
    """What of the encoding follows from the run's settings alone, does so."""
    try:
        expected = codec_settings(settings, task.message_type, len(task.cohort))
    except EncodingError as error:
        raise ProtocolViolation(ENCODING_OFF_SETTINGS, str(error)) from None
    if encoding.settings != expected:
        raise ProtocolViolation(ENCODING_OFF_SETTINGS, "the encoding has other bounds than the settings of the run")
    seed = rotation_seed(task.model.sha256) if task.model else ""
    if isinstance(encoding, Encoding) and encoding.rotation not in ("", seed):
        raise ProtocolViolation(
            ENCODING_OFF_SETTINGS, "the updates are to be rotated in another way than the model that is sent decides"
        )
    names = None if task.queries else settings.metrics_of(task.trains)
    if names is not None and encoding.metrics != (() if settings.private and task.trains else names):
        raise ProtocolViolation(ENCODING_OFF_SETTINGS, "the encoding has other metrics than the settings of the run")
    if (release_of(encoding) is not None) != settings.private:
        raise ProtocolViolation(
            ENCODING_OFF_SETTINGS, "the encoding and the settings of the run disagree on differential privacy"
        )


def _sound_encoding(task: Task) -> AnyEncoding:
    try:
        return encoding_of(task)
    except ConfigurationError as error:
        raise ProtocolViolation("encoding-refused", str(error)) from None


def check_privacy(task: Task, encoding: AnyEncoding, settings: JobSettings, policy: Policy, spent: Accountant) -> None:
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
    _check_noise(task, encoding, release, settings)
    if not policy.max_epsilon:
        return
    if (alone := Accountant((release,)).epsilon(policy.delta)) > policy.max_epsilon:
        raise ProtocolViolation(
            TOO_LITTLE_NOISE,
            f"this exchange alone costs epsilon {alone:.4g}, the policy allows {policy.max_epsilon:g}",
            asked=min(alone, _ENDLESS),
            allowed=policy.max_epsilon,
        )
    if (after := spent.epsilon(policy.delta, further=release)) > policy.max_epsilon:
        raise ProtocolViolation(
            PRIVACY_BUDGET,
            f"epsilon {spent.epsilon(policy.delta):.4g} is spent, this exchange would make it {after:.4g}; "
            f"the policy allows {policy.max_epsilon:g}",
            asked=min(after, _ENDLESS),
            allowed=policy.max_epsilon,
        )


def _check_noise(task: Task, encoding: AnyEncoding, release: Release, settings: JobSettings) -> None:
    """The noise is what follows from the settings, and counts on no more clients than a sum is sure to have."""
    if task.protection is None:
        raise ProtocolViolation(Check.BAD_PARAMETERS, "a secure task must name its graph, threshold and key agreement")
    sure = noise_clients(len(task.cohort), task.quorum, task.protection)
    if release.shares > sure:
        raise ProtocolViolation(
            NOISE_SHARES,
            f"the noise is shared out among {release.shares} clients, a sum is sure to hold those of {sure} only",
            asked=release.shares,
            allowed=max(0, sure),
        )
    try:
        plan = privacy_plan(settings)
        assert plan is not None  # noqa: S101 - the settings say the same as the encoding
        expected = private_encoding(
            encoding.settings,
            encoding.layout,
            len(task.cohort),
            plan=plan,
            noise_clients=release.shares,
            metrics=encoding.metrics or (),
        )
    except ConfigurationError as error:
        raise ProtocolViolation(ENCODING_OFF_SETTINGS, str(error)) from None
    # The variance is computed with the machine's own functions: the last digits may differ.
    enough = release.variance >= expected.release.variance * (1 - _ROUNDING)
    if (
        not enough
        or replace(release, variance=expected.release.variance) != expected.release
        or (
            encoding.clip != expected.clip  # type: ignore[union-attr]
        )
    ):
        raise ProtocolViolation(
            ENCODING_OFF_SETTINGS, "the encoding has less noise, or another kind, than the settings of the run ask for"
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
            APP_MISMATCH,
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
            MODEL_TOO_LARGE,
            f"the model has {size} bytes, the policy allows {policy.max_model_bytes}",
            asked=size,
            allowed=policy.max_model_bytes,
        )
    if task.seconds > policy.max_seconds:
        raise ProtocolViolation(
            TOO_LONG,
            f"the local work may take {task.seconds:g} s, the policy allows {policy.max_seconds:g}",
            asked=task.seconds,
            allowed=policy.max_seconds,
        )
    # Who is not done in time contributes nothing, unseen: a short time would choose whom a sum is made of.
    least = LEAST_TIME * settings.train_seconds
    if task.aggregation == "secure" and task.seconds < least and not policy.report_failures:
        raise ProtocolViolation(
            TOO_SHORT,
            f"the local work may take {task.seconds:g} s, but {least:g} of the {settings.train_seconds:g} s of "
            "train-seconds have to be left",
            asked=task.seconds,
            allowed=least,
        )
    layout = task.encoding.layout if task.encoding is not None else None
    if layout is not None and len(layout.specs) > policy.max_tensors:
        raise ProtocolViolation(
            TOO_MANY_TENSORS,
            f"the model has {len(layout.specs)} tensors, the policy allows {policy.max_tensors}",
            asked=len(layout.specs),
            allowed=policy.max_tensors,
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
            f"the exchange goes on with {task.quorum} of {len(task.cohort)} clients; {failures} of them may contribute "
            f"nothing, and {honest} of the others do not help the server; the policy demands {policy.min_cohort}",
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
            AGREEMENT_NOT_ALLOWED,
            "the keys would not withstand later quantum decryption; the owner would have to set allow-x25519 = true "
            "in policy.toml",
        )
