"""Check that a message of a plain exchange holds only what the client's owner agreed to."""

from __future__ import annotations

from pathlib import Path

from fedcore.errors import PeerError, ProtocolViolation
from fedcore.federation import Policy
from fedcore.federation.admission.agreed import AppAgreement
from fedcore.wire.control import Task
from fedcore.wire.record_file import config_values, read_records


def check_message(task: Task, content: Path | None, agreed: AppAgreement, policy: Policy) -> None:
    """Raise ProtocolViolation for a message that is none, or sets what the owner does not allow."""
    if content is None or task.message is None:
        raise ProtocolViolation("message-missing", "a plain exchange sends every client a message")
    try:
        configs = config_values(read_records(content))
    except PeerError as error:
        raise ProtocolViolation("model-malformed", str(error)) from None
    agreed.check(task.model_copy(update={"configs": configs}), policy)
