"""Whether the encoding of a task is sound, follows from the run's settings, and keeps the rule of scales."""

from __future__ import annotations

from fedcore.codec import AnyEncoding, BoundedEncoding, Encoding, check_scales, release_of, rotation_seed
from fedcore.errors import ConfigurationError, EncodingError, ProtocolViolation
from fedcore.federation.admission import checks
from fedcore.federation.admission.owner import ClientHistory
from fedcore.run.encoding_plan import codec_settings
from fedcore.run.exchange import encoding_of
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState
from fedcore.wire.tasks import Task


def check_encoding(task: Task) -> AnyEncoding:
    """The encoding of a secure task, when it is sound and fits the task."""
    encoding = sound_encoding(task)
    if encoding.n_max != len(task.cohort):
        raise ProtocolViolation(
            "encoding-refused", f"the encoding is for {encoding.n_max} clients, the cohort has {len(task.cohort)}"
        )
    if (task.model is not None and task.trains) != (encoding.layout is not None):
        raise ProtocolViolation("layout-mismatch", "the encoding and the task disagree on whether a model is trained")
    return encoding


def check_trained_layout(task: Task, encoding: AnyEncoding, model: ModelState | None) -> None:
    """Refuse a model that is to be trained and has other tensors than its encoding; raises ProtocolViolation."""
    if model is None or encoding.layout is None or not task.trains:
        return
    try:
        model.layout.check_same(encoding.layout, what="the announced encoding")
    except EncodingError as error:
        raise ProtocolViolation("layout-mismatch", str(error)) from None


def follow_scales(task: Task, encoding: AnyEncoding, ledger: ClientHistory) -> None:
    """Remember the scales of an exchange, durably; raises ProtocolViolation if they break their rule."""
    if not isinstance(encoding, Encoding) or encoding.layout is None:
        return
    layout = encoding.layout.digest().hex()
    try:
        memory = check_scales(encoding, ledger.scales(task.run, layout), exchange=task.exchange)
    except EncodingError as error:
        raise ProtocolViolation(checks.SCALES_OFF_RULE, str(error)) from None
    ledger.remember_scales(task.run, layout, memory)


def check_settings(task: Task, encoding: AnyEncoding, settings: JobSettings) -> None:
    """What of the encoding follows from the run's settings alone, does so; raises ProtocolViolation."""
    try:
        expected = codec_settings(settings, task.message_type, len(task.cohort))
    except EncodingError as error:
        raise _off_settings(str(error)) from None
    if encoding.settings != expected:
        raise _off_settings("the encoding has other bounds than the settings of the run")
    seed = rotation_seed(task.model.sha256) if task.model else ""
    if isinstance(encoding, Encoding) and encoding.rotation not in ("", seed):
        raise _off_settings("the updates are to be rotated in another way than the model that is sent decides")
    names = None if task.queries else settings.metrics_of(task.trains)
    without = task.trains and (settings.private or bool(settings.norm_proof))
    if names is not None and encoding.metrics != (() if without else names):
        raise _off_settings("the encoding has other metrics than the settings of the run")
    if (release_of(encoding) is not None) != settings.private:
        raise _off_settings("the encoding and the settings of the run disagree on differential privacy")
    clip = encoding.clip if isinstance(encoding, BoundedEncoding) else None
    if clip != (settings.clip_norm if settings.norm_proof and task.trains else None):
        raise _off_settings("the encoding and the settings of the run disagree on norm proofs")


def sound_encoding(task: Task) -> AnyEncoding:
    """The encoding that a secure task announces; raises ProtocolViolation("encoding-refused") for none."""
    try:
        return encoding_of(task)
    except ConfigurationError as error:
        raise ProtocolViolation("encoding-refused", str(error)) from None


def _off_settings(text: str) -> ProtocolViolation:
    return ProtocolViolation(checks.ENCODING_OFF_SETTINGS, text)
