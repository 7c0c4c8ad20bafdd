"""Boosted trees of one place alone, by the same code as those of a federation: what others are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from flwr.app import ArrayRecord, Context, Message, RecordDict, UserConfig
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedcore.data.types import Split
from fedcore.errors import AppError, UsageError
from fedcore.flower.records import state_from_arrays
from fedcore.flower.trees.client import TreesApp
from fedcore.flower.trees.schedule import NOISE_KEYS
from fedcore.flower.trees.server import grow
from fedcore.state import ModelState
from fedcore.trees import Ensemble

_NODE: Final = 1


def grown_in_one_place(
    client: TreesApp, config: UserConfig, parts: tuple[Split, Split], on_model: Callable[[int, ModelState], None]
) -> ModelState:
    """The trees of these rows, whose bins are those of these rows, too; with early stopping those up to the best round.

    There is no noise: in one place nobody else sees a sum.

    Args:
        client: whose columns and bounds they are.
        parts: training and test part.
        on_model: called with the number of each round and the model, before the first round and after each that grew
            trees.
    """
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = _NODE, _NODE, 0
    app, rounds = client.over(parts), -1

    def take(number: int, arrays: ArrayRecord) -> None:
        nonlocal rounds
        state = state_from_arrays(arrays)
        grown = Ensemble.from_arrays({name: state[name] for name in state}).rounds
        if grown > rounds:  # after an early stop Flower's loop goes on without a further tree
            on_model(number, state)
        rounds = grown

    noiseless = {key: value for key, value in config.items() if key not in NOISE_KEYS}
    return state_from_arrays(grow(OnePlace(app, config), {**noiseless, "min-nodes": 1}, app, on_model=take))


class OnePlace(Grid):
    """A Grid with one node, whose app it calls at once."""

    def __init__(self, app: TreesApp, config: UserConfig) -> None:
        self._app = app
        self._context = Context(
            run_id=_NODE, node_id=_NODE, node_config={}, state=RecordDict(), run_config=dict(config)
        )

    def set_run(self, run: Run) -> None:
        """There is no other."""

    @property
    def run(self) -> Run:
        """Flower's description of the run, with nothing in it but the id."""
        return Run.create_empty(_NODE)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message, as its constructor makes it."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The one."""
        return [_NODE]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refused: what grows trees waits for each answer."""
        raise UsageError("one place answers at once")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Refused likewise."""
        raise UsageError("one place answers at once")

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """The replies of the app; raises AppError for a message that it cannot answer."""
        replies = [self._app(message, self._context) for message in messages]
        for reply in replies:
            if reply.has_error():
                raise AppError(str(reply.error.reason))
        return replies
