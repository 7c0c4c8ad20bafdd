"""Drives a Flower app in this process: real Messages, a real Context, no server and no Ray."""

import importlib
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

EXAMPLES = Path(__file__).parents[3] / "examples"


@contextmanager
def app_modules(name: str) -> Iterator[tuple[ModuleType, ModuleType, ModuleType]]:
    """The task, client_app and server_app modules of examples/NAME."""
    folder = str(EXAMPLES / name)
    sys.path.insert(0, folder)
    try:
        task, client, server = (
            importlib.import_module(f"{name}_app.{part}") for part in ("task", "client_app", "server_app")
        )
        yield task, client, server
    finally:
        sys.path.remove(folder)


def project(name: str) -> dict[str, Any]:
    return tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())


def run_config(name: str, **changes: Any) -> dict[str, Any]:
    """The app's own settings with some changed; an underscore stands for a hyphen."""
    config = dict(project(name)["tool"]["flwr"]["app"]["config"])
    for key, value in changes.items():
        hyphenated = key.replace("_", "-")
        assert hyphenated in config, hyphenated
        config[hyphenated] = value
    return config


def context(config: dict[str, Any], client: int, clients: int) -> Context:
    node = {"partition-id": client, "num-partitions": clients}
    return Context(run_id=1, node_id=client + 1, node_config=node, state=RecordDict(), run_config=config)


def message(kind: str, arrays: ArrayRecord, server_round: int, node: int) -> Message:
    # Message's own constructor asks a process-global task identity; Metadata does not.
    metadata = Metadata(
        run_id=1,
        message_id=f"{kind}-{server_round}-{node}",
        src_node_id=0,
        dst_node_id=node,
        reply_to_message_id="",
        group_id="",
        created_at=0.0,
        ttl=1e12,
        message_type=kind,
    )
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": server_round})})
    return Message(content, metadata=metadata)


@contextmanager
def server_task() -> Iterator[None]:
    """The identity without which a strategy cannot make a Message, taken back afterwards."""
    # The class has no way to read an identity that is not set, hence the private names.
    before = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)  # noqa: SLF001
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before  # noqa: SLF001


@dataclass
class LocalGrid(Grid):
    """A Grid whose nodes are calls of one ClientApp, one after the other."""

    app: Any
    config: dict[str, Any]
    clients: int
    replies: list[Message] = field(default_factory=list)

    def set_run(self, run_id: int) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.clients + 1))

    def push_messages(self, messages: Any) -> list[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Any) -> list[Message]:
        raise NotImplementedError

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        replies = []
        for each in messages:
            node = each.metadata.dst_node_id
            replies.append(self.app(each, context(self.config, node - 1, self.clients)))
        self.replies.extend(replies)
        return replies

    def rounds(self, kind: str) -> list[list[RecordDict]]:
        """The contents of the replies of one kind, by round."""
        contents = [m.content for m in self.replies if m.metadata.message_type == kind]
        return [contents[i : i + self.clients] for i in range(0, len(contents), self.clients)]


def run_app(name: str, clients: int, **changes: Any) -> LocalGrid:
    """A whole run of examples/NAME; the grid it returns has seen every reply."""
    config = run_config(name, **changes)
    with app_modules(name) as (_, client, server), server_task():
        grid = LocalGrid(app=client.app, config=config, clients=clients)
        server.app(grid, context(config, 0, 1))
    return grid


def pooled(replies: list[RecordDict], key: str) -> float:
    """Mean of a metric over the replies, weighted by their examples."""
    metrics = [reply["metrics"] for reply in replies]
    weights = [m["num-examples"] for m in metrics]
    return sum(m[key] * w for m, w in zip(metrics, weights, strict=True)) / sum(weights)
