"""Where a run may begin: the check of its first model against what its owner accepts.

A model that somebody crafts makes single records readable from sums. So a client takes part in a run only if it can
trace the model with which the run began: the agreed app makes it, its owner names it, or the transcript shows it as the
model of a sum of an earlier run. Later models follow from the app's own strategy, if the server runs it; they have the
tensors of the models before them.

The transcript says which model is the first one: that of the run's first record with a quorum of signatures. If there
is no such record, the models of the task itself are. A record that too few signed counts for nothing, since a server
can make one up.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from fedcore.errors import ProtocolViolation
from fedcore.federation import Policy
from fedcore.federation.admission import checks
from fedcore.federation.policy import APP_MODEL
from fedcore.federation.transcript import Chain, ChainLink
from fedcore.state import ModelState
from fedcore.wire.tasks import Task

_QUERY = "query"
_DEFAULT = ".default"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppModel:
    """The model that the agreed app's ServerApp asks with first.

    sha256
        "" if it was not derived.
    reason
        Why it was not.
    """

    sha256: str = ""
    reason: str = "it was not derived"


NO_APP_MODEL = AppModel()


def untraced_models(task: Task, policy: Policy, chain: Chain, last_models: Set[str] = frozenset()) -> frozenset[str]:
    """The models with which the run began that nothing but the app can account for; none if there is nothing to check.

    Args:
        chain: the transcript that the task goes on from, as this client has checked it.
        last_models: of earlier runs whose beginning this client traced; there need be no sum from them.
    """
    if task.aggregation == "plain" or task.queries or not policy.traces_models:
        return frozenset()
    complete = [link for link in chain.links if link.complete and link.purpose != _QUERY]
    recorded = [link for link in complete if link.run == task.run]
    first = _models_of(recorded[0]) if recorded else _models_asked(task)
    if task.buffer is not None:
        first |= {start.sha256 for start in task.buffer.starts if start.number == 0}
    if task.version is not None and task.version.number == 0:
        first |= {task.version.sha256}
    earlier = {model for link in complete if link.run != task.run for model in _models_of(link)}
    return frozenset(first - earlier - last_models - set(policy.first_models))


def check_first_model(untraced: Set[str], policy: Policy, app: AppModel) -> None:
    """Refuse a run that began with another model than its app's; raises ProtocolViolation.

    Args:
        untraced: what `untraced_models` gave.
        app: the app's own first model.
    """
    accepted = {app.sha256} if APP_MODEL in policy.first_models else set()
    for model in sorted(untraced - accepted):
        if app.sha256 or APP_MODEL not in policy.first_models:
            why = f"the app's own is {app.sha256}" if app.sha256 else "the policy does not name the app's own"
        else:
            why = f"the app's own cannot be derived here: {app.reason}"
        raise ProtocolViolation(
            checks.FIRST_MODEL,
            f"the run begins with the model {model}; {why}, and no earlier sum in the transcript was made from it. Run "
            "without an initial model, or the owner would have to add this hash to first-models in policy.toml, which "
            "is to say that nobody crafted the model to read records out of sums",
            subject=model,
        )


def check_layout(task: Task, model: ModelState | None, chain: Chain) -> None:
    """Refuse a model that has other tensors than the run's models before it; raises ProtocolViolation.

    In another order, under other names, or next to a tensor that nobody uses, the same values have another hash, and
    their sums would count as those of another model. A training is compared with those of its message type, which is a
    function of the agreed app, and an evaluation with all trainings of the run, since the transcript has no other
    layouts; it may leave out control variates.
    """
    if model is None or task.queries:
        return
    trainings = [link for link in chain.links if link.run == task.run and link.complete and link.layouts[0]]
    if task.trains:
        known = {link.layouts[0] for link in trainings if _of_one_type(link, task)}
    else:
        known = {digest for link in trainings for digest in link.layouts}
    if known and model.layout.digest().hex() not in known:
        raise ProtocolViolation(
            checks.OTHER_LAYOUT,
            f"the model has other tensors than those of {task.message_type[:60]!r} before it in this run: other names, "
            "shapes or dtypes, or another order. The same values could so be summed twice, as two models",
        )


def _of_one_type(link: ChainLink, task: Task) -> bool:
    """Whether the app answers both by one function: Flower calls the one without a name "default"."""
    return link.message_type.removesuffix(_DEFAULT) == task.message_type.removesuffix(_DEFAULT)


def needs_app(policy: Policy, untraced: Set[str]) -> bool:
    """Whether the answer depends on the app's own first model."""
    return bool(untraced) and APP_MODEL in policy.first_models


def _models_of(link: ChainLink) -> set[str]:
    """The models from which the updates of a record began."""
    return {start for _, start, _ in link.buffered} or ({link.model} if link.model else set())


def _models_asked(task: Task) -> set[str]:
    if task.version is not None:  # work for a later sum, which is checked when it is summed
        return set()
    if task.buffer is not None:
        return {start.sha256 for start in task.buffer.starts}
    return {task.model_sha256} if task.model_sha256 else set()
