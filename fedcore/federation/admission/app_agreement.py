"""The owner's agreement to an installed app: its config and settings, and what a run may change of them.

A number in a run can be a question: how a client answers for one value and for another tells on which side of it
something about its data lies. So the owner decides what a run may set. The app's own config and
settings are covered by its hash; every other value needs `allow-config` in policy.toml.

A message carries what the app's strategy puts into it, from one round to the next: a learning rate that is halved, say.
The values follow from code that the owner agreed to, if the server runs it. So a message may differ from the run, under
keys of the run config as under others; but if the owner has a rule for a key, it binds every message as well. ADR 16
says what that leaves to a server that lies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from fedcore.data.statistics import STEP_KEY
from fedcore.errors import ConfigurationError, PeerError, ProtocolViolation
from fedcore.federation import Policy
from fedcore.federation.admission import checks
from fedcore.federation.admission.owner import AgreedSum, ClientHistory
from fedcore.federation.policy import ANY_KEY, SETTINGS_PREFIX, ConfigRule
from fedcore.flower.app import FlowerApp
from fedcore.run.settings import JobSettings
from fedcore.wire.base import Scalar
from fedcore.wire.record_file import config_values, read_records
from fedcore.wire.tasks import Task

if TYPE_CHECKING:
    from fedcore.flower.columns.plan import PlannedQuestion, StudyPlan

_MOST_CHARACTERS: Final = 80
"""Characters of a value in a log or a ledger."""


class _Missing:
    """Stands for a key that is not there."""

    def __repr__(self) -> str:
        return "nothing"


_MISSING: Final = _Missing()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A value of a run that differs from the app's."""

    key: str
    requested: Any
    agreed: Any

    def allowed(self, policy: Policy) -> bool:
        """Whether the owner's policy has a rule for the key that the value fits."""
        rule = _rule(self.key, policy)
        return rule is not None and _fits(self.requested, rule)

    def refusal(self) -> ProtocolViolation:
        """The refusal: the key, the run's value, the app's, and what would allow it."""
        return ProtocolViolation(
            checks.CONFIG_NOT_ALLOWED,
            f"the run sets {self.key!r} to {_text(self.requested)}, the installed app says {_text(self.agreed)}; its "
            f"owner would have to write {_remedy(self.key, self.requested)} in policy.toml",
            subject="" if self.requested is _MISSING else _printable(self.key),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageValue:
    """A value in a message."""

    key: str
    value: Any
    run: Any
    """The run's value under the same key; `_MISSING` if it has none."""

    @property
    def differs(self) -> bool:
        """Whether the run has another value under this key."""
        return self.run is not _MISSING and not _same(self.value, self.run)

    def allowed(self, policy: Policy) -> bool:
        """Whether it is the run's value, or fits the owner's rule for the key, if there is one.

        The rule for all keys covers those of the run config alone.
        """
        if self.run is _MISSING:
            rule = policy.allow_config.get(self.key)
        else:
            rule = _rule(self.key, policy) if self.differs else None
        return rule is None or _fits(self.value, rule)

    def refusal(self, policy: Policy) -> ProtocolViolation:
        """The refusal: the key, both values, the owner's rule, and what would help."""
        key = _printable(self.key)
        return ProtocolViolation(
            checks.MESSAGE_NOT_ALLOWED,
            f"the strategy's message sets {self.key!r} to {_text(self.value)}, the run says {_text(self.run)}; "
            f"policy.toml has allow-config.{json.dumps(self.key)} = {json.dumps(_rule(self.key, policy))}. Have the "
            f"strategy send what fits that, or the owner would have to write {_remedy(self.key, self.value)}",
            # Both values are the server's own words.
            subject=f"{key[:30]}={_text(self.value)} (run: {_text(self.run)})" if key else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AppAgreement:
    """The config and the settings of the installed app, and its study plan; None if it has none."""

    run_config: Mapping[str, Scalar]
    settings: JobSettings
    plan: StudyPlan | None = None

    @classmethod
    def of(cls, app: FlowerApp) -> Self:
        """What installing `app` agrees to."""
        return cls(run_config=app.run_config, settings=app.settings, plan=_plan_of(app))

    def message_values(self, task: Task) -> Iterator[MessageValue]:
        """Every value that the task's message carries."""
        for config in task.configs.values():
            for key, value in sorted(config.items()):
                run = task.run_config.get(key, self.run_config.get(key, _MISSING))
                yield MessageValue(key=key, value=value, run=run)

    def changes_of_run(self, run_config: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[ConfigChange]:
        """Every value of a run that differs from the app's.

        Args:
            settings: those for clients.
        """
        yield from _differences(run_config, self.run_config)
        yield from _differences(settings, self.settings.for_clients(), SETTINGS_PREFIX)

    def check(self, task: Task, policy: Policy) -> JobSettings:
        """The settings that hold for the client; raises ProtocolViolation for what its owner does not allow."""
        for change in self.changes_of_run(task.run_config, task.settings):
            if not change.allowed(policy):
                raise change.refusal()
        for value in self.message_values(task):
            if not value.allowed(policy):
                raise value.refusal(policy)
        try:
            settings = JobSettings.from_mapping(task.settings, where="the task's settings")
        except ConfigurationError as error:
            raise ProtocolViolation(checks.CONFIG_NOT_ALLOWED, str(error)) from None
        if missing := settings.for_clients().keys() - task.settings.keys():
            raise ProtocolViolation(checks.CONFIG_NOT_ALLOWED, f"the task does not say what {min(missing)} is")
        return settings

    def changed(self, task: Task) -> dict[str, str]:
        """For the ledger: key -> the run's value if it differs from the app's, cut short. No more than twenty.

        A key under which a message differs from the run ends in "(message)".
        """
        changes = self.changes_of_run(task.run_config, task.settings)
        listed = [(_printable(change.key), _text(change.requested)) for change in changes]
        listed += [
            (f"{_printable(it.key)} (message)", _text(it.value)) for it in self.message_values(task) if it.differs
        ]
        more = {"...": f"{len(listed) - 20} more"} if len(listed) > 20 else {}
        return dict(listed[:20]) | more


def _plan_of(app: FlowerApp) -> StudyPlan | None:
    if not app.plan:
        return None
    from fedcore.flower.columns.plan import StudyPlan  # which takes SciPy, that a client without a plan does not need

    return StudyPlan.of(app)


def check_planned(task: Task, plan: StudyPlan | None, history: ClientHistory) -> str:
    """The name of the question that a query belongs to; "" if it is none, or there is no plan.

    Raises ProtocolViolation for a query that is not in the plan, or was asked as often as the plan says, and without a
    plan for one whose sums tell of each client by itself.
    """
    if not task.queries:
        return ""
    config: dict[str, Any] = {key: value for values in task.configs.values() for key, value in values.items()}
    if plan is None:
        if _tells_of_sites(config):
            raise ProtocolViolation(
                checks.NOT_PLANNED,
                "random effects of sites tell the server how many rows each site has, and their means; only a study "
                "plan of the app agrees to that",
            )
        return ""
    questions = list(plan.find(task.message_type, config))
    if not questions:
        raise ProtocolViolation(
            checks.NOT_PLANNED, "the query belongs to no question of the study plan that the installed app has"
        )
    released = history.released(task.purpose, task.subject_model)
    for question in questions:
        if _has_room(question, task.run, released):
            return question.name
    raise ProtocolViolation(
        checks.NOT_PLANNED,
        f"the question {questions[0].name!r} was asked as often as the study plan of the installed app says: in "
        f"{questions[0].runs} runs, with {questions[0].queries} queries in each at most",
    )


def _tells_of_sites(config: Mapping[str, Any]) -> bool:
    """Whether a query is a step of random effects (`MixedStep`)."""
    try:
        step = json.loads(str(config.get(STEP_KEY, "{}")))
    except ValueError:
        return False
    return isinstance(step, dict) and "spread" in step


def _has_room(question: PlannedQuestion, run: str, released: Sequence[AgreedSum]) -> bool:
    sums = [one.run for one in released if one.question == question.name]
    return len({*sums, run}) <= question.runs and sums.count(run) < question.queries


def check_message(task: Task, content: Path | None, agreed: AppAgreement, policy: Policy) -> None:
    """The same for the message of a plain exchange, whose content is a separate file; None if there is none.

    Raises ProtocolViolation for a malformed message, or one that sets what the owner does not allow.
    """
    if content is None or task.message is None:
        raise ProtocolViolation("message-missing", "a plain exchange sends every client a message")
    try:
        configs = config_values(read_records(content))
    except PeerError as error:
        raise ProtocolViolation(checks.MODEL_MALFORMED, str(error)) from None
    agreed.check(task.model_copy(update={"configs": configs}), policy)


def _differences(requested: Mapping[str, Any], agreed: Mapping[str, Any], prefix: str = "") -> Iterator[ConfigChange]:
    for key in sorted(requested.keys() | agreed.keys()):
        mine, theirs = agreed.get(key, _MISSING), requested.get(key, _MISSING)
        if not _same(theirs, mine):
            yield ConfigChange(key=prefix + key, requested=theirs, agreed=mine)


def _rule(key: str, policy: Policy) -> ConfigRule | None:
    """The owner's rule for a key, or else that for all keys."""
    return policy.allow_config.get(key, policy.allow_config.get(ANY_KEY))


def _same(one: Any, two: Any) -> bool:
    """Alike to the app as well: True is not 1, and -0.0 is not 0.0."""
    return type(one) is type(two) and repr(one) == repr(two)


def _fits(value: Any, rule: ConfigRule) -> bool:
    if rule is True:
        return True
    if type(value) is str:
        return value in rule
    if type(value) is list:
        return isinstance(rule[0], str) and all(type(item) is str and item in rule for item in value)
    low, high = rule if len(rule) == 2 else (None, None)
    if type(value) not in (int, float) or isinstance(low, str | None) or isinstance(high, str | None):
        return False
    return bool(low <= value <= high)


def _remedy(key: str, value: Any) -> str:
    rule = "true"
    if type(value) in (int, float) and value == value:  # noqa: PLR0124 - NaN is in no range
        rule = f"[{value!r}, {value!r}], or a wider range,"
    elif type(value) in (str, list):
        rule = _text([value] if type(value) is str else value)
    return f"allow-config.{json.dumps(key)} = {rule}"


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, default=repr) if value is not _MISSING else repr(value)
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."


def _printable(key: str) -> str:
    """A key as it may stand in a log, at the server's as well; "" for one that may not."""
    return key[:200] if key.isprintable() else ""
