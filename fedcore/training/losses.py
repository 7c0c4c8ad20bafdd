"""Losses that clients train and test with.

A loss is a sum over examples, or one number for a whole batch. The first kind is the same however the examples are
divided into batches, micro-batches and ranks; the second is not, and is declared (`over="batch"`), so that nothing
divides its batches unseen (docs/adr/0027-losses-metrics-algorithms.md). One number that is a mean over the examples
(`over="mean"`) can be put together from its parts.

A loss is a function of what the model gave and the targets, or one of the model and the batch, which is then whatever
the DataLoader gives:

    def loss(model, batch):
        return model(**batch).loss

Shapes of the ready-made ones, n examples:

    cross_entropy           logits [n, classes], or one [n, 1]      targets [n], whole numbers
                            logits [n, length, classes]             targets [n, length], IGNORED if there is none
    token_cross_entropy     likewise; a batch's loss is the mean over its targets, not over its examples
    binary_cross_entropy    one logit [n] or [n, 1]                 targets [n] or [n, 1], 0 to 1
    multi_label             logits [n, labels]                      targets [n, labels], 0 to 1
    squared_error, absolute_error, huber   values [n] or [n, k]     targets of the same shape; [n, 1] and [n] are one
    cox                     log risk [n] or [n, 1]                  targets [n, 2]: time, and 1 for an event, 0 for none
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from fedcore.errors import ConfigurationError, UsageError
from fedcore.run.engine_config import EngineConfig
from fedcore.training.structures import rows_in

IGNORED = -100
"""The target that counts for nothing, as in torch's cross entropy."""

_HALF = (torch.float16, torch.bfloat16)

LossFunction: TypeAlias = Callable[[Any, Any], Tensor]
"""(output of the model [n, ...], targets [n, ...]) -> the loss of each example [n], or of the batch [].

Both are structures where the model and the dataset give some. If its parameters are called `model` and `batch` it gets
the model and the whole batch."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What a model is trained and tested by.

    over: "example" if `compute` gives the loss of each example [n], which depends on no other; "target" if in addition
        a batch's loss is the mean over all its targets, so that an example weighs what it has of them (`counts`);
        "mean" if it gives one number [], the mean of the examples' losses; "batch" if it gives one number [] for a
        batch in which examples depend on each other.
    counts: of targets [n, ...], how many each example's loss is the mean over, float64 [n], which is its weight in a
        test; None for one each. If `of` is "model": of the model and the batch, how many the batch's loss is the mean
        over, which is its weight among the parts of a batch as well.
    total: the sum [] of what `compute` gives, in fewer operations and with the same gradient bit for bit; None, also as
        its result, if there is no such way.
    of: "output" if `compute` is a function of the model's output and the targets, "model" if of the model and the batch
        as the DataLoader gives it. The latter may give one number with over="example" as well, as long as nothing
        divides its batches.
    """

    name: str
    compute: LossFunction
    over: Literal["example", "target", "mean", "batch"] = "example"
    counts: Callable[..., Tensor] | None = None
    total: Callable[[Tensor, Tensor], Tensor | None] | None = None
    of: Literal["output", "model"] = "output"

    def __post_init__(self) -> None:
        if self.over not in ("example", "target", "mean", "batch"):
            raise ConfigurationError(
                f'loss {self.name}: over is "example", "target", "mean" or "batch", not {self.over!r}'
            )
        if self.over == "target" and (self.counts is None or self.of == "model"):
            raise ConfigurationError(
                f'loss {self.name}: over="target" needs counts, the targets of each example, and a loss of the output; '
                'of the model and the batch give over="mean" with counts'
            )
        if self.of not in ("output", "model"):
            raise ConfigurationError(f'loss {self.name}: of is "output" or "model", not {self.of!r}')

    def __call__(self, output: Any, targets: Any) -> Tensor:
        """The losses [n], or the batch's loss []; raises ConfigurationError if `compute` gives another shape."""
        return self.checked(self.compute(output, targets), rows_in(targets))

    def checked(self, value: Any, examples: int, *, divided: bool = False) -> Tensor:
        """What `compute` gave, if it has the right shape.

        Args:
            divided: whether this may be a part of a batch only.
        """
        shape = list(value.shape) if isinstance(value, Tensor) else None
        expected = [examples] if self.each else []
        if isinstance(value, Tensor) and shape == expected:
            return value
        if self.of == "model" and isinstance(value, Tensor) and not shape:
            if divided:
                raise ConfigurationError(_one_number(self), check="batch-loss")
            return value
        raise ConfigurationError(
            _wrong_shape(self, type(value).__name__ if shape is None else shape, expected), check="loss-shape"
        )

    def sum(self, output: Any, targets: Any) -> Tensor:
        """The losses of all examples together []; that of a batch counts once for each of its examples."""
        if self.total is not None and (together := self.total(output, targets)) is not None:
            return together
        value = self(output, targets)
        return value.sum() if self.each else value * rows_in(targets)

    @property
    def each(self) -> bool:
        """Whether it gives the loss of each example."""
        return self.over in ("example", "target")

    def check_engine(self, config: EngineConfig, ranks: int) -> None:
        """Raise ConfigurationError for an engine that would cut a batch in parts, if the loss is over the batch."""
        if self.over == "target" and config.engine == "pp":
            raise ConfigurationError(
                f"loss {self.name} is over the targets of a batch, and engine pp weighs each example alike; use fsdp",
                check="target-loss",
            )
        if self.of == "model" and config.engine == "pp":
            raise ConfigurationError(
                f"loss {self.name} is a function of the model and the batch, and engine pp has the model in parts: "
                "give a loss of (output, targets), or use another engine",
                check="loss-of-model",
            )
        if self.over != "batch":
            return
        reason, parts = "", config.data_ranks(ranks)
        if config.engine == "pp":
            reason = "engine pp cuts every batch into micro-batches; use tp, which does not"
        elif parts > 1:
            reason = f"engine {config.engine} divides every batch among {parts} ranks; use one rank (single), or tp"
        elif config.micro_batches > 1:
            reason = f"micro-batches = {config.micro_batches} cuts every batch; leave it out, or set it to 1"
        if reason:
            raise ConfigurationError(
                f"loss {self.name} is over a whole batch, and would be another one over its parts: {reason}",
                check="batch-loss",
            )


def as_loss(loss: Loss | LossFunction) -> Loss:
    """A loss as it is; a plain function as the loss of each example, under its own name.

    A function whose parameters are called `model` and `batch` gets these.
    """
    if isinstance(loss, Loss):
        return loss
    if not callable(loss):
        raise ConfigurationError(
            f"a loss is a function of (output, targets), one of (model, batch), or a Loss, not a {type(loss).__name__}",
            check="not-a-loss",
        )
    return Loss(getattr(loss, "__name__", type(loss).__name__), loss, of=_takes(loss))


def _takes(function: LossFunction) -> Literal["output", "model"]:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # of a function written in C
        return "output"
    return "model" if names == ["model", "batch"] else "output"


def _one_number(loss: Loss) -> str:
    return (
        f"loss {loss.name} gives one number for a batch, and here each batch is cut in parts (ranks, micro-batches). "
        f'If it is the mean of the examples\' losses say so: Loss({loss.name!r}, ..., over="mean", of="model"); if '
        "examples depend on each other, train on one rank without micro-batches"
    )


def _wrong_shape(loss: Loss, shape: list[int] | str, expected: list[int]) -> str:
    if isinstance(shape, str):
        return f"loss {loss.name} returned a {shape}, not a tensor"
    if not loss.each:
        return f'loss {loss.name} returned the shape {shape}; with over="{loss.over}" it gives one number, of shape []'
    what = f"loss {loss.name} returned the shape {shape} for {expected[0]} examples; "
    if not shape:
        return (
            f"{what}give the loss of each example, {expected}, without a mean over them "
            f'(reduction="none"), or declare it: Loss({loss.name!r}, ..., over="batch"), or over="mean" if it is a mean'
        )
    if shape == [*expected, 1]:
        return f"{what}give {expected}: compare output.squeeze(1) with the targets"
    return f"{what}give one number for each example, {expected}, as with .flatten(1).mean(1)"


def one_tensor(output: Any) -> Tensor:
    """The output if it is a tensor, or its `logits`, as of a Hugging Face model; raises UsageError for others."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        if logits.dim() > 2:
            raise UsageError(
                f"the model gives logits {list(logits.shape)} of each position, and only the model knows whether its "
                "labels are those of the same position or of the next: train by its own loss, loss=model_loss "
                "(fedcore.training.losses), or by a function of (model, batch)",
                check="whose-positions",
            )
        return logits
    raise UsageError(
        f"the model gives a {type(output).__name__}, and this loss or metric takes one tensor: write a function of "
        "(output, targets) that picks its part, or a loss of (model, batch)",
        check="several-outputs",
    )


def predicted(output: Tensor) -> Tensor:
    """The most likely class at each position, int64 [n] or [n, length]."""
    if _is_one_logit(output):
        return (output.squeeze(1) > 0).long()
    return output.argmax(dim=-1)


def as_features(x: Tensor) -> Tensor:
    """Grey levels (uint8, 0 to 255) become float32 in [0, 1], the same bits on each device; others stay as they are."""
    # By a tensor of the device: by a number a GPU would multiply with its rounded inverse.
    return x.float() / torch.full((), 255.0, device=x.device) if x.dtype == torch.uint8 else x


def counted_targets(targets: Tensor) -> Tensor:
    """How many positions of each example have a target, float64 [n]."""
    return (targets != IGNORED).reshape(len(targets), -1).sum(dim=1, dtype=torch.float64)


def paired(output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Values and targets in one shape and dtype, [n, k]; raises UsageError if theirs differ by more than a 1."""
    output = one_tensor(output)
    wide = output.float() if output.dtype in _HALF else output
    flat, expected = (t.unsqueeze(1) if t.dim() == 1 else t for t in (wide, targets))
    if flat.shape != expected.shape or flat.dim() != 2:
        raise UsageError(
            f"a model's output of shape {list(output.shape)} does not fit targets of shape {list(targets.shape)}: "
            "each target needs one value, [n] or [n, k]",
            check="targets-do-not-fit",
        )
    return flat, expected.to(flat.dtype)


# --- losses ---------------------------------------------------------------------------------------------------------


def _cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    """Of each example [n]; of a sequence the mean over its counted positions, and 0 if it has none."""
    losses = at_positions(output, targets)
    if losses.dim() == 1:
        return losses
    return losses.sum(dim=1) / counted_targets(targets).clamp(min=1).to(losses.dtype)


def _total_cross_entropy(output: Tensor, targets: Tensor) -> Tensor | None:
    """Of all examples []; None for sequences, whose examples are means."""
    return at_positions(output, targets, "sum") if targets.dim() == 1 else None


def at_positions(output: Tensor, targets: Tensor, reduction: Literal["none", "sum"] = "none") -> Tensor:
    """Cross entropy at each position, in the shape of `targets`, 0 if the target is IGNORED; or their sum []."""
    output = one_tensor(output)
    if targets.is_floating_point():
        shape = ", ".join(["n", *map(str, targets.shape[1:])])
        raise ConfigurationError(
            f"the targets are {str(targets.dtype).removeprefix('torch.')} of shape [{shape}], and cross "
            "entropy needs whole numbers (int64), the classes. Say what they are: loss=squared_error, "
            "metrics=(rmse, r2) for numbers; loss=binary_cross_entropy or multi_label, metrics=(auc(),) for 0 and 1; "
            "loss=cox, metrics=(c_index,) for times with events (fedcore.training.losses, fedcore.training.metrics)",
            check="targets-not-classes",
        )
    if output.shape[:-1] != targets.shape or output.dim() not in (2, 3):
        raise UsageError(
            f"a model's output of shape {list(output.shape)} does not fit targets of shape {list(targets.shape)}: "
            "targets have one dimension less, without the classes",
            check="targets-do-not-fit",
        )
    # A sum over 16-bit losses would lose most of their digits.
    logits = output.float() if output.dtype in _HALF else output
    if _is_one_logit(logits):
        return functional.binary_cross_entropy_with_logits(
            logits.squeeze(1), targets.to(logits.dtype), reduction=reduction
        )
    if logits.dim() == 3:  # cross entropy wants the classes second: [n, classes, length]
        logits = logits.movedim(-1, 1)
    return functional.cross_entropy(logits, targets.long(), ignore_index=IGNORED, reduction=reduction)


def _is_one_logit(output: Tensor) -> bool:
    return output.dim() == 2 and output.shape[1] == 1


def _over_labels(output: Tensor, targets: Tensor) -> Tensor:
    logits, expected = paired(output, targets)
    return functional.binary_cross_entropy_with_logits(logits, expected, reduction="none").mean(dim=1)


def _one_label(output: Tensor, targets: Tensor) -> Tensor:
    logits, _ = paired(output, targets)
    if logits.shape[1] != 1:
        raise UsageError(
            f"binary_cross_entropy takes one logit for each example, not {logits.shape[1]}: use multi_label for "
            "several labels, or cross_entropy for one of several classes"
        )
    return _over_labels(output, targets)


def _squared(output: Tensor, targets: Tensor) -> Tensor:
    values, expected = paired(output, targets)
    return (values - expected).square().mean(dim=1)


def _absolute(output: Tensor, targets: Tensor) -> Tensor:
    values, expected = paired(output, targets)
    return (values - expected).abs().mean(dim=1)


def _huber(output: Tensor, targets: Tensor) -> Tensor:
    values, expected = paired(output, targets)
    return functional.huber_loss(values, expected, reduction="none").mean(dim=1)


def _cox(output: Tensor, targets: Tensor) -> Tensor:
    """Negative partial log likelihood of the batch over its number of events []; 0 if it has none.

    Ties as Breslow (1974): all with the same time are at risk at each of their events. Examples are at risk until
    their own time; risks are compared within the batch alone.
    """
    risk, time, event = survival(output, targets)
    order = torch.argsort(time, descending=True)
    risk, time, event = risk[order], time[order], event[order]
    # At risk at a time is who has it or a later one: up to the last place with the same time.
    last = torch.searchsorted(-time, -time, right=True) - 1
    at_risk = torch.logcumsumexp(risk, dim=0)[last]
    return ((at_risk - risk) * event).sum() / event.sum().clamp(min=1)


def survival(output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log risks, times and events, each [n]; raises UsageError for other shapes, and for events but 0 and 1."""
    output = one_tensor(output)
    wide = output.float() if output.dtype in _HALF else output
    risk = wide.squeeze(1) if _is_one_logit(wide) else wide
    if risk.dim() != 1 or targets.shape != (len(risk), 2):
        raise UsageError(
            f"a model's output of shape {list(output.shape)} does not fit targets of shape {list(targets.shape)}: "
            "survival needs one log risk for each example, [n] or [n, 1], and targets [n, 2], time and event",
            check="survival-targets",
        )
    time, event = targets[:, 0], targets[:, 1]
    if not bool(((event == 0) | (event == 1)).all()):
        raise UsageError(
            "the second column of the targets is the event, 1 or 0; there are other values in it", check="event-targets"
        )
    return risk, time, event.to(risk.dtype)


def _of_model(model: Any, batch: Any) -> Tensor:
    loss = getattr(model(**batch), "loss", None) if isinstance(batch, Mapping) else None
    if not isinstance(loss, Tensor):
        raise UsageError(
            "model_loss is for models that compute a loss of a batch that is a dict with their labels, as those of "
            "transformers do: model(**batch).loss",
            check="no-model-loss",
        )
    return loss


def _labels_counted(model: Any, batch: Mapping[str, Any]) -> Tensor:
    """How many labels the model's loss is the mean over []; of a causal model the first position has none."""
    labels = batch["labels"]
    if labels.dim() < 2 or labels.is_floating_point():
        return torch.tensor(float(len(labels)), device=labels.device)
    # transformers has the same default for models whose class it has no rule for, as GPT2LMHeadModel.
    causal = getattr(model, "loss_type", "") in (None, "ForCausalLM")
    number: Tensor = (labels[:, 1:] if causal else labels).ne(IGNORED).sum().float()
    return number


cross_entropy = Loss("cross_entropy", _cross_entropy, counts=counted_targets, total=_total_cross_entropy)
token_cross_entropy = Loss("token_cross_entropy", _cross_entropy, over="target", counts=counted_targets)
binary_cross_entropy = Loss("binary_cross_entropy", _one_label)
multi_label = Loss("multi_label", _over_labels)
squared_error = Loss("squared_error", _squared)
absolute_error = Loss("absolute_error", _absolute)
huber = Loss("huber", _huber)
cox = Loss("cox", _cox, over="batch")
model_loss = Loss("model_loss", _of_model, over="mean", counts=_labels_counted, of="model")
"""What a model of Hugging Face computes itself: `model(**batch).loss`."""
