"""Refuses app code that needs individual replies when only the mean is available.

In secure mode one reply stands for all clients. Flower's own averaging cannot tell the difference; code that counts,
compares or weighs single replies can, and would go on with a wrong result. If a training is cut into groups, a reply
stands for each of them (`robust`). So before every exchange the stack says who
asked: Flower's own loop with a strategy whose functions are all known or declared, or declared code of the app
(`declarations`). Everything else is refused before the first exchange, by the line that is the reason.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, MethodType
from typing import Any

from flwr import server as legacy
from flwr import serverapp
from flwr.server import strategy as legacy_strategies
from flwr.server import workflow
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import Result, Strategy
from flwr.serverapp.strategy import fedavg as fedavg_module

from fedcore.errors import AppError
from fedcore.flower.array_view import aggregate_views
from fedcore.flower.grid.declarations import Wants, code_of, declared_class, declared_code, owner_of
from fedcore.flower.grid.robust import ROBUST, Groups, check_robust, is_robust
from fedcore.flower.grid.weighted_means import Metrics, is_weighted_mean
from fedcore.wire.tasks import is_training

DEFAULT_WEIGHT_KEY = "num-examples"
QUERY = "query"

_AVERAGES = ("FedAvg", "FedProx", "FedAvgM", "FedOpt", "FedAdam", "FedYogi", "FedAdagrad")
_AGGREGATE = ("aggregate_train", "aggregate_evaluate", "_check_and_log_replies")
_AGGREGATE_METRICS = ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn")
_LEGACY_AGGREGATE = ("aggregate_fit", "aggregate_evaluate")
_LEGACY_METRICS = ("fit_metrics_aggregation_fn", "evaluate_metrics_aggregation_fn")
_LEGACY_SERVER = ("fit", "fit_round", "evaluate_round")
_UTILITIES = ("aggregate_arrayrecords", "aggregate_metricrecords", "validate_message_reply_consistency")
_FLOWER = Path(str(serverapp.__file__)).parents[1]
_OURS = frozenset(
    f"fedcore.flower.{name}"
    for name in (
        "grid.aggregation_guard", "grid.grid", "grid.secure_grid", "grid.plain_grid", "grid.sampling",
        "grid.initial_model", "grid.query_sums", "grid.robust", "grid.weighted_means", "legacy",
    )
)  # fmt: skip

_REASONS = {
    "Bulyan": "it selects among single updates",
    "Krum": "it selects among single updates",
    "MultiKrum": "it selects among single updates",
    "FedMedian": "a median needs every single update",
    "FedTrimmedAvg": "a trimmed mean needs every single update",
    "QFedAvg": "it weights every update by its own loss",
    "FedXgbBagging": "trees are collected one by one, not averaged",
    "FedXgbCyclic": "a model goes from client to client",
    "FedXgbNnAvg": "trees are collected one by one, not averaged",
    "FaultTolerantFedAvg": "it counts the single replies (in secure mode min-clients and quorum decide)",
    "FedAvgAndroid": "its parameters are bytes without a shape, which cannot be added",
    "DPFedAvgFixed": "its noise is made for single replies (in secure mode fedcore's own privacy settings do that)",
    "DPFedAvgAdaptive": "it reads the norm bit of every single reply",
    "DifferentialPrivacyServerSideFixedClipping": "it clips every single update at the server",
    "DifferentialPrivacyServerSideAdaptiveClipping": "it clips every single update at the server",
    "DifferentialPrivacyClientSideFixedClipping": "it counts the single replies",
    "DifferentialPrivacyClientSideAdaptiveClipping": "it reads the norm bit of every single reply",
}
"""Flower's strategies that want more than the mean, those of its legacy API too; a base's reason is its subclasses'."""


def _known() -> dict[int, CodeType]:
    """Flower's own functions that want nothing but the mean, as they were before the app's code ran."""
    functions: list[Any] = [getattr(fedavg_module, name) for name in _UTILITIES]
    for module, names in ((strategies, _AGGREGATE), (legacy_strategies, _LEGACY_AGGREGATE)):
        kinds = [getattr(module, name) for name in _AVERAGES if hasattr(module, name)]
        functions += [vars(kind)[name] for kind in kinds for name in names if name in vars(kind)]
    functions += [vars(legacy.Server)[name] for name in _LEGACY_SERVER]
    functions.append(aggregate_views)  # in the place of Flower's
    codes = [function.__code__ for function in functions]
    return {id(code): code for code in codes}


_KNOWN = _known()
_START = Strategy.start.__code__
_LEGACY_FIT = legacy.Server.fit.__code__
_WORKFLOW = workflow.DefaultWorkflow.__call__.__code__


@dataclass(frozen=True, slots=True)
class ReplyConsumer:
    """Who gets the replies.

    weight_key: the metric that weighs them.
    result: what one of Flower's own loops returns in the end, and fills until then; None if the loop is the app's.
    """

    weight_key: str = DEFAULT_WEIGHT_KEY
    result: Result | legacy.History | None = None


def reply_consumer() -> ReplyConsumer:
    """Who called the grid: the strategy that Flower's own loop runs, if there is one on the stack."""
    for frame in callers():
        if frame.f_code is _START:
            strategy, result = variable(frame, "self"), variable(frame, "result")
            return ReplyConsumer(getattr(strategy, "weighted_by_key", DEFAULT_WEIGHT_KEY), result)
        if frame.f_code is _LEGACY_FIT:
            return ReplyConsumer(result=variable(frame, "history"))
        if frame.f_code is _WORKFLOW:
            return ReplyConsumer(result=variable(frame, "context").history)
    return ReplyConsumer()


def looping_strategy() -> object | None:
    """The strategy that one of Flower's own loops on the stack trains and evaluates with; None without one."""
    for frame in callers():
        if frame.f_code is _START:
            strategy: object = variable(frame, "self")
            return strategy
        if frame.f_code is _LEGACY_FIT:
            server = variable(frame, "self")
            own = any(not of_flower(code_of(getattr(server, name))) for name in _LEGACY_SERVER)
            return None if own else server.strategy
    return None


def check_mean_only(message_type: str, groups: Groups | None = None) -> None:
    """Refuse to hand one reply for all clients to code that is not known to want nothing else; raises AppError.

    Call it before the exchange, from the grid's own methods. Queries are handed over as sums, all else as means; if
    there are `groups`, trainings as a mean for each.
    """
    purpose = message_type.partition(".")[0]
    wants: Wants = "sum" if purpose == QUERY else "groups" if groups is not None and is_training(purpose) else "mean"
    check_callers(groups)
    frames = list(callers())
    if frames and frames[0].f_code is _START and wants != "sum":
        return
    if frames and isinstance(server := _first_argument(frames[0]), legacy.Server) and wants != "sum":
        check_server(server, groups)
    elif not any(_declared_frame(frame, wants) for frame in frames):
        raise AppError(_own_loop(frames, wants), check="undeclared-loop")


def check_callers(groups: Groups | None = None) -> None:
    """Refuse every strategy on the stack that `check_strategy` refuses, no matter who else is there; raises AppError.

    So an app may put a grid of its own around ours, or write a strategy's loop again. Call it as soon as a strategy
    asks
    for anything: it may wait for clients for long before it has a message for them.
    """
    for frame in callers():
        if isinstance(strategy := _first_argument(frame), Strategy | legacy_strategies.Strategy):
            check_strategy(strategy, groups)


def check_strategy(strategy: object, groups: Groups | None = None) -> None:
    """Refuse a strategy, of either of Flower's APIs, that may want more than the clients' mean; raises AppError.

    Args:
        groups: of a run whose trainings are cut into them, in which a strategy may compare their means.
    """
    name = type(strategy).__name__
    if groups is not None:
        _check_grouped(strategy, name, groups)
    if isinstance(strategy, legacy_strategies.Strategy):
        _check(strategy, _LEGACY_AGGREGATE[groups is not None :], name, _STRATEGY_REMEDY)
        _check_metrics(strategy, _LEGACY_METRICS[groups is not None :])
        if getattr(strategy, "accept_failures", True) is False:
            raise AppError(
                f"{name} cannot run with secure aggregation: accept_failures=False wants to see every failure, and a "
                "sum shows none. Leave it out; the settings min-clients and quorum decide how many may be missing",
                check="every-failure",
            )
        return
    _check(strategy, _AGGREGATE[groups is not None :], name, _STRATEGY_REMEDY)
    _check_metrics(strategy, _AGGREGATE_METRICS[groups is not None :])
    for utility in _UTILITIES:
        _check(fedavg_module, (utility,), name, _METRICS_REMEDY)


def check_metrics(message_type: str, metrics: Metrics, groups: Groups | None = None) -> None:
    """Refuse a function of metrics that looked like a weighted mean before it was known what the clients report.

    Call it when a sum is there, before it is handed over; raises AppError. metrics: the weighted means.
    """
    kind = message_type.partition(".")[0]
    if kind == QUERY or (groups is not None and is_training(kind)):
        return
    for frame in callers():
        if isinstance(strategy := _first_argument(frame), Strategy | legacy_strategies.Strategy):
            names = _LEGACY_METRICS if isinstance(strategy, legacy_strategies.Strategy) else _AGGREGATE_METRICS
            _check_metrics(strategy, names[:1] if is_training(kind) else names[1:], metrics)


def _check_metrics(strategy: object, names: tuple[str, ...], metrics: Metrics | None = None) -> None:
    """`_check`, but for functions that are weighted means by what they do."""
    legacy = isinstance(strategy, legacy_strategies.Strategy)
    weight_key = str(getattr(strategy, "weighted_by_key", DEFAULT_WEIGHT_KEY))

    def unrecognised(name: str) -> bool:
        value = getattr(strategy, name, None)
        if value is None or _accepted(strategy, name, value, "mean"):
            return False
        return not is_weighted_mean(value, "legacy" if legacy else "message", weight_key, metrics)

    _check(strategy, tuple(filter(unrecognised, names)), type(strategy).__name__, _METRICS_REMEDY)


def _check_grouped(strategy: object, name: str, groups: Groups) -> None:
    """What sees the replies of a training may have the means of groups."""
    legacy = isinstance(strategy, legacy_strategies.Strategy)
    _check(strategy, (_LEGACY_AGGREGATE if legacy else _AGGREGATE)[:1], name, _GROUPS_REMEDY, "groups")
    _check(strategy, (_LEGACY_METRICS if legacy else _AGGREGATE_METRICS)[:1], name, _GROUPS_REMEDY, "groups")
    check_robust(strategy, groups)


def check_server(server: object, groups: Groups | None = None) -> None:
    """Refuse a legacy Server whose loop is the app's own, or whose strategy `check_strategy` refuses."""
    _check(server, _LEGACY_SERVER, type(server).__name__, _STRATEGY_REMEDY)
    check_strategy(getattr(server, "strategy"), groups)  # noqa: B009 - of Flower's class, or of one that only looks like it


# --- what is known or declared ------------------------------------------------------------------------------------


def _check(holder: object, names: tuple[str, ...], title: str, remedy: str, wants: Wants = "mean") -> None:
    """Every attribute of `holder` with one of these names is Flower's own that may have what it gets, or declared."""
    for name in names:
        value = getattr(holder, name, None)
        if value is None or _accepted(holder, name, value, wants):
            continue
        flower = of_flower(code_of(value))
        if flower:
            raise _flowers_own(title, type(holder))
        if wants == "groups":
            raise AppError(
                f"{title} cannot run with groups: its {name}{_where(value)} would get the weighted mean of each group "
                f"in place of one reply for each client, and go on as if that were all. {remedy}",
                check="undeclared",
            )
        raise AppError(
            f"{title} cannot run with secure aggregation: its {name}{_where(value)} would get one reply, the clients' "
            f"weighted mean, in place of one reply for each client, and go on as if that were all. {remedy}",
            check="undeclared",
        )


def _accepted(holder: object, name: str, value: object, wants: Wants) -> bool:
    code = code_of(value)
    if code is not None and (id(code) in _KNOWN or declared_code(code, wants)):
        return True
    if wants == "groups" and is_robust(code):
        return True
    if of_flower(code):
        return False  # nobody can declare a median to be a mean
    if name in getattr(holder, "__dict__", {}):  # set on this very object: its class does not speak for it
        return _declared_value(value, code, wants)
    owner = owner_of(type(holder), name)
    return owner is not None and declared_class(type(holder), owner, wants)


def _declared_value(value: object, code: CodeType | None, wants: Wants) -> bool:
    """Whether a callable was declared by the class of the object that it is, or is bound to."""
    if isinstance(value, MethodType):
        kind = type(value.__self__)
        owner = owner_of(kind, value.__name__, code)
    elif code is None:
        kind = type(value)
        owner = owner_of(kind, "__call__")
    else:
        return False
    return owner is not None and declared_class(kind, owner, wants)


def _declared_frame(frame: FrameType, wants: Wants) -> bool:
    """Whether the function that runs in this frame was declared, or is a method of a class that was."""
    code = frame.f_code
    if declared_code(code, wants):
        return True
    first = _first_argument(frame)
    kind = first if isinstance(first, type) else type(first)
    owner = owner_of(kind, code.co_name, code)
    return owner is not None and declared_class(kind, owner, wants)


def _first_argument(frame: FrameType) -> object:
    code = frame.f_code
    return variable(frame, code.co_varnames[0]) if code.co_argcount else None


def callers() -> Iterator[FrameType]:
    """The frames outside of the grid, from its caller outwards."""
    here = inspect.currentframe()
    frame: FrameType | None = here and here.f_back
    while frame is not None:
        if frame.f_globals.get("__name__") not in _OURS:
            yield frame
        frame = frame.f_back


def variable(frame: FrameType, name: str) -> Any:
    """The value of a variable in a frame, None if it has none.

    Before Python 3.13 a look at the variables leaves a copy of them all with the frame. Flower's loop would hold the
    replies of an earlier round by it, so the copy is emptied; not one of an app's own frame, which `locals()` gives it.
    """
    values = frame.f_locals
    value = values.get(name)
    if isinstance(values, dict) and of_flower(frame.f_code):
        values.clear()
    return value


# --- what a person reads ------------------------------------------------------------------------------------------

_SOME = "FedAvg, FedProx, FedAvgM, FedAdam, ..."
_PLAIN = 'set aggregation = "plain", which lets the server read every update'
_STRATEGY_REMEDY = (
    "If the mean is all that it needs, declare it: mean_only = True in its class, or @fedcore.mean_only above the "
    f"function. Otherwise choose a strategy that uses only the mean ({_SOME}), or {_PLAIN}"
)
_GROUPS_REMEDY = (
    "If it means the same of these, declare it: group_means = True in its class, or @fedcore.group_means above the "
    "function (mean_only is about one reply). fedcore's own algorithms (SCAFFOLD, DiLoCo, ...) are for one mean "
    "of all. Otherwise choose one of Flower's averages or robust strategies "
    f"({', '.join(ROBUST)}), or set groups = 1"
)
_METRICS_REMEDY = (
    "If it means the same of one mean, declare it: @fedcore.mean_only above the function. "
    "fedcore.flower.strategies.metrics has ready-made ones (mean, ratio, total, maximum, finish). "
    f"Otherwise {_PLAIN}"
)


def _flowers_own(title: str, kind: type) -> AppError:
    reasons = [_REASONS[base.__name__] for base in kind.__mro__ if base.__name__ in _REASONS]
    reason = reasons[0] if reasons else "it is not known to need nothing but the mean"
    where = _app_frame(list(callers()))
    return AppError(
        f"{title} cannot run with secure aggregation: {reason}{where}. Choose a strategy that uses only the mean "
        f"({_SOME}), or {_PLAIN}{_grouped(kind)}",
        check="secure-aggregation" if reasons else "unknown-strategy",
    )


def _grouped(kind: type) -> str:
    """What else there is for a strategy that can work on the means of groups."""
    robust = any(base.__name__ in ROBUST for base in kind.__mro__)
    return "; or let it compare the means of groups of clients (the setting groups, docs/flower.md)" if robust else ""


def _own_loop(frames: list[FrameType], wants: Wants) -> str:
    """Why code that takes replies itself is refused."""
    app = next(filter(_of_app, frames), frames[0])
    where = f"{_short(app.f_code.co_filename)}:{app.f_lineno}"
    if _is_workflow(frames[0]):
        return (
            f"{where}: Flower's SecAgg workflow cannot run inside secure aggregation: its keys, shares and masked "
            "vectors are single replies. Leave the workflow and its mods out, and call the strategy's start: secure "
            f"mode adds masks by itself. Or {_PLAIN}"
        )
    name = app.f_code.co_qualname.replace("<locals>.", "")
    if wants == "groups":
        return (
            f"{where}: {name} takes the replies itself and would get the weighted mean of each group in place of one "
            f"reply for each client. {_GROUPS_REMEDY}"
        )
    gets = "sum" if wants == "sum" else "weighted mean"
    start = "" if wants == "sum" else "call the start of one of Flower's strategies, or "
    return (
        f"{where}: {name} takes the replies itself and would get one, the clients' {gets}, in place of one reply for "
        f"each client. If the {wants} is all that it needs, declare it: @fedcore.{wants}_only above the function, or "
        f"{wants}_only = True in its class. Otherwise {start}{_PLAIN}"
    )


def _is_workflow(frame: FrameType) -> bool:
    return "secure_aggregation" in frame.f_code.co_filename


def _app_frame(frames: list[FrameType]) -> str:
    """(server_app.py:12), the app's line that led here; empty if there is none."""
    for frame in frames:
        if _of_app(frame):
            return f" ({_short(frame.f_code.co_filename)}:{frame.f_lineno})"
    return ""


def _where(value: object) -> str:
    code = code_of(value) or code_of(getattr(type(value), "__call__"))  # noqa: B004, B009 - an object's own
    return f" ({_short(code.co_filename)}:{code.co_firstlineno})" if code is not None else ""


def _of_app(frame: FrameType) -> bool:
    return not of_flower(frame.f_code) and not str(frame.f_globals.get("__name__")).startswith("fedcore.")


def of_flower(code: CodeType | None) -> bool:
    """Whether a function is Flower's own."""
    return code is not None and Path(code.co_filename).is_relative_to(_FLOWER)


def _short(filename: str) -> str:
    """The path below the folder that Python imports it from: for an app, below its own."""
    path = Path(filename)
    folders = [Path(entry) for entry in sys.path if entry and path.is_relative_to(entry)]
    return str(path.relative_to(max(folders, key=lambda folder: len(folder.parts)))) if folders else path.name
