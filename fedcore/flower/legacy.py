"""Flower's legacy Server over exchanges: a round of fit or evaluate is one exchange, and its errors are not lost.

The legacy Server asks each client from a thread of its own and takes whatever that raises for one client's failure. So
for the duration of a run the two functions that do so are replaced by ones that send all messages at once. In secure
mode the one reply stands for all clients: its result has the summed examples and the weighted mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, cast

from flwr.app import Message, RecordDict
from flwr.common import Code, EvaluateIns, EvaluateRes, FitIns, FitRes, Status
from flwr.compat.common import recorddict_compat as compat
from flwr.server import server as legacy_server
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat import app as legacy_app
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.server import Server, run_fl

from fedcore.flower.grid.grid import ExchangeGrid
from fedcore.flower.grid.sampling import NodeWait
from fedcore.flower.grid.secure_grid import SecureGrid

Ins: TypeAlias = FitIns | EvaluateIns
Res: TypeAlias = FitRes | EvaluateRes
_A_WHILE: Final = 5
"""Seconds of Flower's waiting, after which it looks again who is connected; a query of its own runs meanwhile."""
Replies: TypeAlias = tuple[list[tuple[ClientProxy, Any]], list[Any]]


@contextmanager
def legacy_rounds(grid: ExchangeGrid) -> Iterator[None]:
    """Let rounds of Flower's legacy Server over `grid` be exchanges, and see the parameters that it ends with."""
    replaced: dict[tuple[Any, str], Any] = {
        (legacy_server, "fit_clients"): _one_exchange("train", legacy_server.fit_clients, _fit_result),
        (legacy_server, "evaluate_clients"): _one_exchange("evaluate", legacy_server.evaluate_clients, _test_result),
        (legacy_app, "run_fl"): _watched(grid, run_fl),
        (SimpleClientManager, "wait_for"): _never_in_vain(grid, SimpleClientManager.wait_for),
    }
    originals = {(module, name): getattr(module, name) for module, name in replaced}
    for (module, name), function in replaced.items():
        setattr(module, name, function)
    try:
        yield
    finally:
        for (module, name), function in originals.items():
            setattr(module, name, function)


def _one_exchange(
    message_type: str, original: Callable[..., Replies], result: Callable[[RecordDict, bool], Res]
) -> Callable[..., Replies]:
    """What asks all clients of a round at once; `original` if they are not those of one of our grids."""

    def ask_clients(
        client_instructions: list[tuple[ClientProxy, Any]],
        max_workers: int | None,
        timeout: float | None,
        group_id: int,
    ) -> Replies:
        proxies = [proxy for proxy, _ in client_instructions]
        grid = _common_grid(proxies)
        if grid is None:
            return original(client_instructions, max_workers, timeout, group_id)
        messages = _messages(client_instructions, message_type, timeout, group_id)
        replies = grid.send_and_receive(messages, timeout=timeout)
        secure = isinstance(grid, SecureGrid)
        pending = {message.metadata.message_id: proxy for message, proxy in zip(messages, proxies, strict=True)}
        results: list[tuple[ClientProxy, Any]] = []
        failures: list[Any] = []
        for reply in replies:
            proxy = pending.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                failures.append(ValueError(f"the client replied with an error: {reply.error.reason}"))
                continue
            outcome = proxy, result(reply.content, secure)
            (results if outcome[1].status.code == Code.OK else failures).append(outcome)
        if not secure:
            failures += [ValueError("the client did not reply in time") for _ in pending]
        return results, failures

    return ask_clients


def _common_grid(proxies: Sequence[ClientProxy]) -> ExchangeGrid | None:
    grids = {id(proxy.grid): proxy.grid for proxy in proxies if isinstance(proxy, GridClientProxy)}
    ours = len(grids) == 1 and all(isinstance(proxy, GridClientProxy) for proxy in proxies)
    grid = next(iter(grids.values())) if ours else None
    return grid if isinstance(grid, ExchangeGrid) else None


def _messages(
    instructions: Sequence[tuple[ClientProxy, Ins]], message_type: str, timeout: float | None, group_id: int
) -> list[Message]:
    """A message for each client; clients with the same instructions share their records."""
    contents: dict[int, RecordDict] = {}
    for _, ins in instructions:
        if id(ins) not in contents:
            contents[id(ins)] = (
                compat.fitins_to_recorddict(ins, keep_input=True)
                if isinstance(ins, FitIns)
                else compat.evaluateins_to_recorddict(ins, keep_input=True)
            )
    group = str(group_id) if group_id else ""
    return [
        Message(contents[id(ins)], cast(GridClientProxy, proxy).node_id, message_type, ttl=timeout, group_id=group)
        for proxy, ins in instructions
    ]


def _fit_result(content: RecordDict, secure: bool) -> FitRes:
    if not secure:
        return compat.recorddict_to_fitres(content, keep_input=False)
    examples, metrics = _mean_of(content)
    arrays = next(iter(content.array_records.values()))
    parameters = compat.arrayrecord_to_parameters(arrays, keep_input=False)
    return FitRes(status=_OK, parameters=parameters, num_examples=examples, metrics=metrics)


def _test_result(content: RecordDict, secure: bool) -> EvaluateRes:
    if not secure:
        return compat.recorddict_to_evaluateres(content)
    examples, metrics = _mean_of(content)
    return EvaluateRes(status=_OK, loss=metrics.pop("loss"), num_examples=examples, metrics=metrics)


_OK: Final = Status(code=Code.OK, message="Success")


def _mean_of(content: RecordDict) -> tuple[int, dict[str, Any]]:
    """The summed examples and the means, as the one reply of an exchange has them."""
    (record,) = content.metric_records.values()
    metrics: dict[str, Any] = dict(record)
    return int(metrics.pop("num-examples")), metrics


def _never_in_vain(grid: ExchangeGrid, original: Callable[..., bool]) -> Callable[..., bool]:
    """Flower's waiting, which lasts a day, but not for nodes that never come, and not without a word."""

    def wait_for(manager: SimpleClientManager, num_clients: int, timeout: int = 86400) -> bool:
        waits, remaining = NodeWait.of(num_clients), timeout
        while True:
            grid.check_wait(waits)
            if original(manager, num_clients, min(_A_WHILE, remaining)):
                return True
            remaining -= _A_WHILE
            if remaining <= 0:
                return False
            grid.note_wait(waits)

    return wait_for


def _watched(grid: ExchangeGrid, original: Callable[..., Any]) -> Callable[..., Any]:
    def run(server: Server, config: Any) -> Any:
        history = original(server, config)
        grid.note_final(compat.parameters_to_arrayrecord(server.parameters, keep_input=True), history)
        return history

    return run
