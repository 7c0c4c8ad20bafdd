"""What the owner agreed to by installing an app: what its pyproject.toml says, and what a run may change of that.

Whoever can set a number in a run can ask a question with it: how a client answers for one value and for another tells
on which side of it something about its data lies. So what a run may set is the owner's to say. The app's own config and
settings are covered by its hash; every other value needs `allow-config` in policy.toml.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from fedcore.config import JobSettings
from fedcore.errors import ConfigurationError, ProtocolViolation
from fedcore.federation import Policy
from fedcore.federation.policy import ANY_KEY, SETTINGS_PREFIX, ConfigRule
from fedcore.flower.app import FlowerApp
from fedcore.wire import Scalar, Task

CONFIG_NOT_ALLOWED: Final = "config-not-allowed"
_SHOWN: Final = 80
"""Characters of a value that are shown or kept."""


class _Missing:
    """Stands for a key that is not there."""

    def __repr__(self) -> str:
        return "nothing"


_MISSING: Final = _Missing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A value that the server sent other than the app says. where: what sets it."""

    key: str
    asked: Any
    agreed: Any
    where: str = "the run"

    def allowed(self, policy: Policy) -> bool:
        """Whether the owner's policy has a rule for the key that the value fits."""
        rule = policy.allow_config.get(self.key, policy.allow_config.get(ANY_KEY))
        return rule is not None and _fits(self.asked, rule)

    def refusal(self) -> ProtocolViolation:
        """Names the key, what was asked, what the app says, and what would allow it."""
        return ProtocolViolation(
            CONFIG_NOT_ALLOWED,
            f"{self.where} sets {self.key!r} to {_text(self.asked)}, the installed app says {_text(self.agreed)}; its "
            f"owner would have to write {_remedy(self.key, self.asked)} in policy.toml",
            subject="" if self.asked is _MISSING else _printable(self.key),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """The config and the settings of the installed app."""

    run_config: Mapping[str, Scalar]
    settings: JobSettings

    @classmethod
    def to(cls, app: FlowerApp) -> Self:
        """What installing `app` agrees to."""
        return cls(run_config=app.run_config, settings=app.settings)

    def changes(self, task: Task) -> Iterator[Change]:
        """Every value of the task that is other than the app's: run config, settings, then configs of the message."""
        yield from self.changes_of_run(task.run_config, task.settings)
        for config in task.configs.values():
            for key, value in sorted(config.items()):
                expected = task.run_config.get(key, self.run_config.get(key, _MISSING))
                if expected is not _MISSING and not _same(value, expected):
                    yield Change(key=key, asked=value, agreed=self.run_config.get(key, _MISSING), where="a message")

    def changes_of_run(self, run_config: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[Change]:
        """Every value of a run that is other than the app's. settings: those for clients."""
        yield from _differences(run_config, self.run_config)
        yield from _differences(settings, self.settings.for_clients(), SETTINGS_PREFIX)

    def check(self, task: Task, policy: Policy) -> JobSettings:
        """The settings that hold for the client; raises ProtocolViolation for what its owner does not allow."""
        for change in self.changes(task):
            if not change.allowed(policy):
                raise change.refusal()
        try:
            settings = JobSettings.from_mapping(task.settings, where="the task's settings")
        except ConfigurationError as error:
            raise ProtocolViolation(CONFIG_NOT_ALLOWED, str(error)) from None
        if left_out := settings.for_clients().keys() - task.settings.keys():
            raise ProtocolViolation(CONFIG_NOT_ALLOWED, f"the task does not say what {min(left_out)} is")
        return settings

    def changed(self, task: Task) -> dict[str, str]:
        """The changes for the ledger: key -> what was asked, cut short. No more than twenty."""
        listed = [(_printable(change.key), _text(change.asked)) for change in self.changes(task)]
        more = {"...": f"{len(listed) - 20} more"} if len(listed) > 20 else {}
        return dict(listed[:20]) | more


def _differences(asked: Mapping[str, Any], agreed: Mapping[str, Any], prefix: str = "") -> Iterator[Change]:
    for key in sorted(asked.keys() | agreed.keys()):
        mine, theirs = agreed.get(key, _MISSING), asked.get(key, _MISSING)
        if not _same(theirs, mine):
            yield Change(key=prefix + key, asked=theirs, agreed=mine)


def _same(one: Any, two: Any) -> bool:
    """Alike to the app as well: True is not 1, and -0.0 is not 0.0."""
    return type(one) is type(two) and repr(one) == repr(two)


def _fits(value: Any, rule: ConfigRule) -> bool:
    if rule is True:
        return True
    if type(value) is str:
        return value in rule
    if type(value) is list:
        return all(type(item) is str and item in rule for item in value)
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
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _printable(key: str) -> str:
    """A key as it may stand in a log, at the server's as well; "" for one that may not."""
    return key[:200] if key.isprintable() else ""
