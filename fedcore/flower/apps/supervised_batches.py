"""The tasks of several clients of one `supervised_app`, done at once on one engine.

An app of another kind does not say how it will train, and is not touched. What of the clients' work cannot be done
together is left out of the results, and done one by one by the caller: so it fails as it always fails, in its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from flwr.app import UserConfig

from fedcore.data.types import Split
from fedcore.errors import DataError
from fedcore.flower.apps import progress_protocol
from fedcore.flower.apps.engine_app import Warm, proximal_mu, split_examples
from fedcore.flower.apps.local_algorithms import STRATEGY, weighed
from fedcore.flower.apps.supervised import SupervisedApp
from fedcore.flower.apps.tensor_app import LocalJob, LocalResult, TensorApp
from fedcore.run.engine_config import EngineConfig
from fedcore.state import Layout, ModelState, StateSink
from fedcore.training.batched import TrainedClient, clients_that_pay, find_difference, refusal_reason, train_together
from fedcore.training.engines import Engine, World
from fedcore.training.engines.transfer import Entry, save_entries
from fedcore.training.loop import TrainingPlan, refuse_missing

_TESTED_TOGETHER: Final = 64
_CHECKED: Final = 2
"""Clients whose first steps are compared with those one by one."""

_Sent: TypeAlias = list[tuple[Entry, str]]


@dataclass(slots=True)
class _EngineCheck:
    """What was found out about one engine.

    reason: why its clients do not train at once.
    checked: which kinds of training (a pull, a bound on the gradient) were compared with those one by one.
    """

    engine: Engine
    reason: str | None
    pays: int
    checked: set[tuple[bool, bool]] = field(default_factory=set)


class SupervisedBatches:
    """Does the work of clients of one app.

    at_once, warn: as in `BatchedClients`.
    """

    def __init__(
        self, app: TensorApp, engine: EngineConfig | None, *, at_once: int, warn: Callable[[str], None]
    ) -> None:
        self._app, self._engine_config, self._at_once, self._warn = app, engine, at_once, warn
        self._known: _EngineCheck | None = None
        self._warned: set[str] = set()

    def size(self, config: UserConfig, *, trains: bool) -> int:
        """How many clients to ask for at a time."""
        if type(self._app) is not SupervisedApp:
            self._one_by_one("the app trains by code of its own", requested=trains)
            return 1
        if not trains:
            return _TESTED_TOGETHER
        return self._at_once or self._about(self._app.warm_for(config, self._engine_config)).pays

    def work(self, jobs: Mapping[int, LocalJob], model: ModelState, *, trains: bool) -> dict[int, LocalResult]:
        """The results of those clients whose work can be done together, maybe of none.

        Args:
            jobs: of clients that were sent the same, with one run config. Their new models are each client's own, and
                need not be written before the next task.
        """
        if len(jobs) < 2 or type(self._app) is not SupervisedApp:
            return {}
        warm = self._app.warm_for(next(iter(jobs.values())).config, self._engine_config)
        if warm.engine.world.size > 1 or progress_protocol.progress_enabled():
            return {}
        reason = _own_state(warm, self._app)
        if reason is None and trains:
            reason = self._about(warm).reason or _own_steps(next(iter(jobs.values())))
        if reason is not None:
            return self._one_by_one(reason, requested=trains)
        warm.personalization.load_shared(model)
        return self._train(self._app, warm, jobs) if trains else _test(self._app, warm, jobs)

    def _train(self, app: SupervisedApp, warm: Warm, jobs: Mapping[int, LocalJob]) -> dict[int, LocalResult]:
        results: dict[int, LocalResult] = {}
        try:
            for clients in _alike(_plans(app, jobs)):
                mu = proximal_mu(jobs[next(iter(clients))])
                plans = list(clients.values())
                if not self._agrees(warm.engine, plans, mu):
                    return {}
                trained = train_together(warm.engine, plans, mu=mu)
                layout, sent = warm.personalization.layout(), _sent(warm)
                for (client, plan), client_result in zip(clients.items(), trained, strict=True):
                    if result := _result(app, plan, client_result, layout, sent):
                        results[client] = weighed(result, jobs[client].message)
        except Exception as error:  # the app's own model and loss, under vmap: anything can come out of it
            self._give_up(warm, f"vmap cannot do it: {_first_line(error)}")
            return {}
        return results

    def _agrees(self, engine: Engine, plans: Sequence[TrainingPlan], mu: float) -> bool:
        """Whether a kind of training was compared, or is now, with the one client after the other."""
        known = self._known
        kind = (mu > 0, plans[0].clip_norm > 0)
        if known is None or kind in known.checked:
            return known is not None
        difference = find_difference(engine, plans[:_CHECKED], mu=mu)
        if difference is not None:
            known.reason = difference
            self._say(difference)
            return False
        known.checked.add(kind)
        return True

    def _about(self, warm: Warm) -> _EngineCheck:
        if self._known is None or self._known.engine is not warm.engine:
            self._known = _EngineCheck(
                engine=warm.engine, reason=refusal_reason(warm.engine), pays=clients_that_pay(warm.engine)
            )
        return self._known

    def _give_up(self, warm: Warm, reason: str) -> None:
        self._about(warm).reason = reason
        self._one_by_one(reason, requested=True)

    def _one_by_one(self, reason: str, *, requested: bool) -> dict[int, LocalResult]:
        """Batch nothing; the reason is reported if a number of clients was requested."""
        if requested and self._at_once > 1:
            self._say(reason)
        return {}

    def _say(self, reason: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            self._warn(f"clients train one by one: {reason}")


def _own_state(warm: Warm, app: SupervisedApp) -> str | None:
    personal = warm.personalization.personal
    if personal.parts or personal.whole:
        return "a part of the model stays on each client"
    if app.definition.optimizer_state != "reset":
        return f'its optimizer_state is "{app.definition.optimizer_state}"'
    return None


def _own_steps(job: LocalJob) -> str | None:
    strategy = job.message.get(STRATEGY, "")
    return f"strategy {strategy} has steps of its own" if strategy else None


def _plans(app: SupervisedApp, jobs: Mapping[int, LocalJob]) -> dict[int, TrainingPlan]:
    """The plans of the clients that have one; what is wrong with the others shows in their own turn."""
    plans: dict[int, TrainingPlan] = {}
    for client, job in jobs.items():
        try:
            plan = app.plan(job)
            if isinstance(plan.data, Split) and plan.batches[1] and plan.rates is None:
                plans[client] = plan
        except Exception:  # noqa: S112 - the app's own code, which is called again
            continue
    return plans


def _alike(plans: Mapping[int, TrainingPlan]) -> list[dict[int, TrainingPlan]]:
    """Groups of at least two whose examples have one shape and dtype."""
    groups: dict[Any, dict[int, TrainingPlan]] = {}
    for client, plan in plans.items():
        assert isinstance(plan.data, Split)  # noqa: S101 - or there is no plan
        x, y = plan.data.x, plan.data.y
        key = (x.shape[1:], str(x.dtype), y.shape[1:], str(y.dtype), plan.clip_norm)
        groups.setdefault(key, {})[client] = plan
    return [group for group in groups.values() if len(group) > 1]


def _result(
    app: SupervisedApp, plan: TrainingPlan, trained: TrainedClient, layout: Layout, sent: _Sent
) -> LocalResult | None:
    """What one client reports; None if its data are to blame, which is said in its own turn."""
    try:
        refuse_missing(trained.summary.loss, plan.data)
    except DataError:
        return None
    examples, metrics = split_examples(app.reported(trained.summary))

    def write(sink: StateSink | None) -> None:
        """This client's trained tensors, the others as they were sent."""
        own = [(entry, trained.parameters.get(name)) for entry, name in sent]
        entries = [entry if tensor is None else Entry(entry.spec, tensor) for entry, tensor in own]
        save_entries(entries, sink, World())

    return LocalResult(examples=examples, metrics=metrics, layout=layout, write=write)


def _sent(warm: Warm) -> _Sent:
    """The tensors that go to the server, each with the name of its parameter: a tied one has two names in a state."""
    module = warm.engine.module
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    tensors = module.state_dict(keep_vars=True)
    entries = warm.engine.entries(only=warm.personalization.shared)
    return [(entry, names.get(id(tensors[entry.spec.name]), "")) for entry in entries]


def _test(app: SupervisedApp, warm: Warm, jobs: Mapping[int, LocalJob]) -> dict[int, LocalResult]:
    """The tests of a model that is loaded once for all; each client's figures are those that it has alone."""
    results: dict[int, LocalResult] = {}
    for client, job in jobs.items():
        try:
            examples, metrics = split_examples(app.tested(warm.engine, job))
        except Exception:  # noqa: S112 - the app's own code, which is called again
            continue
        results[client] = LocalResult(examples=examples, metrics=metrics)
    return results


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
