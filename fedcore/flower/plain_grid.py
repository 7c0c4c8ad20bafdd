"""The Grid of plain mode: the server reads every reply."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flwr.app import Message

from fedcore.flower.secure_grid import SecureGrid, same_content


@dataclass(eq=False)
class PlainGrid(SecureGrid):
    """Messages with the same content become one exchange, each client's answer a reply."""

    def get_node_ids(self) -> Iterable[int]:
        """Ids of the clients that are connected now."""
        return self.backend.nodes()

    def deliver(self, messages: Sequence[Message], timeout: float | None) -> list[Message]:
        """One exchange for each distinct content."""
        return [reply for group in _group_by_content(messages) for reply in self._exchange(group, timeout)]


def _group_by_content(messages: Sequence[Message]) -> list[list[Message]]:
    """Messages with equal content, type and group together; order is kept."""
    groups: list[list[Message]] = []
    for message in messages:
        for group in groups:
            if same_content(group[0], message):
                group.append(message)
                break
        else:
            groups.append([message])
    return groups
