"""The check of a plain exchange's message against the owner's agreement; its content is a separate file."""

from __future__ import annotations

from pathlib import Path

from fedcore.errors import PeerError, ProtocolViolation
from fedcore.federation import Policy
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.wire.record_file import config_values, read_records
from fedcore.wire.tasks import Task


def check_message(task: Task, content: Path | None, agreed: AppAgreement, policy: Policy) -> None:
    """Raise ProtocolViolation for a malformed message, or one that sets what the owner does not allow."""
    if content is None or task.message is None:
        raise ProtocolViolation("message-missing", "a plain exchange sends every client a message")
    try:
        configs = config_values(read_records(content))
    except PeerError as error:
        raise ProtocolViolation("model-malformed", str(error)) from None
    agreed.check(task.model_copy(update={"configs": configs}), policy)
