"""Settings of a run: how updates are aggregated, encoded and waited for.

An app may set them in its pyproject.toml under `[tool.fedcore]`, the operator overrides them with `--set key=value`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, Self

from fedcore.errors import ConfigurationError
from fedcore.run.model_selection import BestRule, with_sites
from fedcore.system.assignments import arguments, kebab

ROUNDS_KEY: Final = "num-server-rounds"

SERVER_SETTINGS: Final = frozenset(
    {
        "aggregation", "quorum", "max-corrupt", "max-dropout", "key-agreement", "min-clients", "join-seconds",
        "step-seconds", "liveness-seconds", "pause-seconds", "transfer-seconds", "slow-lines", "sites",
        "max-attempts", "app-seconds", "over-selection",
        "best-model", "buffer-size", "concurrency",
        "min-groups", "download-bits",
    }
)  # fmt: skip
"""Settings of a run that a client need not know, or sees in other fields of its task. All others bind it."""

BUFFERED_SETTINGS: Final = {"buffer-size": 0, "concurrency": 0, "staleness": "sqrt", "max-staleness": 10}
"""What only a run with asynchrony = "buffered" reads, and what it is where nobody says so."""

MOST_STALENESS: Final = 100
"""Most models that an update may have begun before the newest: one counts at most ten times as much as another then."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What holds for a whole run.

    aggregation: "secure" (masked, the server learns only sums) or "plain" (readable by the server, and every output
        says so).
    field_bits: width of a packed field: 8, 10, 12, 16, 21 or 32, or "auto" for the narrowest that has room for the sum
        of the cohort, and with upload_fraction for the widest of up to 16 that it pays for. With 16 and 21 the
        first exchange of a run uses 32, with 32 it uses 64; 8, 10 and 12 compress uploads, the first too
        (docs/bytes.md). Tensors below
        1,024 elements take 96 bits at any setting.
    upload_fraction: size of every upload in proportion to the model in float32, from 0.001 to 1; 0 leaves it to
        field_bits (docs/bytes.md).
    download_bits: 32, or 16 to send a model to clients that have the previous one as the difference, in bfloat16; other
        clients get the whole. For slow downlinks and strategies that ask the same clients each round. Only with secure
        aggregation (docs/bytes.md).
    weight_key: the metric of a reply that says of how many examples it is, by which means are weighted: what Flower's
        strategies call weighted_by_key. A client without examples contributes nothing.
    w_max: largest number of examples that one client may report.
    metric_max: largest absolute value of a metric.
    query_max: largest absolute value of a number in a client's reply to a query, before it is added up.
    max_metrics: how many values the metrics of one reply may hold together.
    train_metrics, evaluate_metrics: names of the metrics that clients report, "name" or "name:4" for a list of 4;
        without them the first exchange of a kind carries the names in its sum.
    clip_norm: L2 bound on a client's update; 0 for none.
    norm_proof: "l2" has each client prove that its update is within clip_norm, or little above it, without telling
        more; one that does not is excluded. Every client weighs the same then, uploads have 32 bits an element, and
        metrics of training stay with the clients. Only with secure aggregation, without differential privacy, for
        models without integer tensors (docs/howto/poisoning.md).
    clipping: what to do if an update grew by more than an exchange has room for: "repeat" (the sum stays closed, and
        the same clients are asked again with more room), "warn" (it is cut off, and the exchange says how much of its
        norm was lost; a client that would lose more than 1 % contributes nothing) or "fail" (the run ends).
    quorum: survivors needed for a sum; 0 for floor(2n/3) + 1, or as many as the clients' policies require. Plain:
        replies with content; with 0 the ServerApp gets the errors itself.
    max_corrupt: fraction of the roster that may collude with the server without learning more than the sum.
    max_dropout: fraction of a cohort of 65 and more that may drop out; larger ones make a client's work larger.
    key_agreement: "x25519", "x25519-mlkem768" (also against later quantum decryption), or "auto": the latter below 65
        clients, where it costs little.
    min_clients: clients that must be connected before an exchange starts; 0 for as many as their policies require (2 in
        plain mode).
    join_seconds: how long to wait for them.
    train_seconds: time for the local work of one exchange; a client with the default policy refuses a task with less
        than half of it left (`too-short`).
    step_seconds: time for any other step. Transfers of the model and of updates have more, by the speed of the line:
    transfer_seconds: the longest that the download of the model, and again the upload of an update, may take in
        addition to `train_seconds` and `step_seconds`. A client has twice the time that its bytes take at the speed of
        its line, up to this.
    slow_lines: what to do with clients whose lines need more than `step_seconds` for the model or the update: "wait"
        gives them time, up to `transfer_seconds`, and does not ask those that need more; "leave-out" asks none of
        them. If too few others are there, all are asked.
    sites: "near", or "remote" for laptops and lines that pause: it changes the defaults of step_seconds to 300,
        liveness_seconds to 120, pause_seconds to 600 and transfer_seconds to 7200.
    liveness_seconds: a client that is silent for longer has dropped out. One that is stopped, or asks for another task,
        has dropped out at once. Time in which the server itself was stopped or overloaded does not count.
    pause_seconds: the same for a client in the middle of a download or upload, whose line may pause: it keeps its place
        and sends only the missing parts. If its connection ends, liveness_seconds hold.
    app_seconds: a ServerApp that requests nothing for longer fails the run; a sixth of it earns a warning.
    max_attempts: how often a failed exchange is tried before the run fails; the next attempt waits 2 seconds, then 4,
        8, up to 60.
    over_selection: fraction of clients asked beyond those that the strategy wants: with 0.3 and a strategy that wants
        10, 13 train and the first 10 updates make the sum; the others are not needed. The strategy has to want fewer
        than all. A quorum of all that were asked is always waited for. Only with secure aggregation, without
        differential privacy, not for queries.
    asynchrony: "none", where a round waits for its clients, or "buffered" (FedBuff): clients train from the newest
        model whenever they are free, and as soon as buffer_size updates are there, their sum makes the next one. Only
        with secure aggregation, and without differential privacy (docs/asynchrony.md).
    buffer_size: updates that make a new model; 0 for as few as the clients' policies allow.
    concurrency: most clients that train at the same time; 0 for all.
    staleness: the weight of an update that began t models before the newest: "sqrt" for 1 / sqrt(1 + t), or "constant".
    max_staleness: an update that began longer ago is not used, and its client begins again; 100 at most.
    groups: groups into which the cohort of a training is cut at random, each a secure sum of its own, so that
        strategies that compare updates get one mean for each (docs/flower.md); 1 for none. Each group has to be as
        large as the smallest allowed cohort. Evaluations and queries stay one sum. Only with secure aggregation,
        without differential privacy and over-selection.
    min_groups: groups that have to give a sum; with fewer the exchange fails. 0 for more than half of `groups`.
    best_model: "NAME:max" or "NAME:min" of a metric of the evaluations: the best model so far is kept as well as the
        last one (docs/tracking.md). Only with secure aggregation.

    Differential privacy of each client, on if dp_epsilon or dp_noise_multiplier is set (it needs clip_norm):
    dp_epsilon: the budget, at which the run stops; 0 for none.
    dp_delta: the delta at which epsilon is stated; below 1 / clients.
    dp_noise_multiplier: noise in the smallest sum over the sensitivity; 0 to derive it from dp_epsilon and dp_rounds.
    dp_rounds: rounds that the budget must last for.
    dp_mechanism: distribution of the noise.
    dp_metric_bound: bound on each metric of an evaluation, noised like an update; 0 asks clients for no evaluation. It
        needs evaluate_metrics.
    """

    aggregation: Literal["secure", "plain"] = "secure"
    field_bits: Literal[8, 10, 12, 16, 21, 32, "auto"] = 16
    upload_fraction: float = 0.0
    download_bits: Literal[16, 32] = 32
    weight_key: str = "num-examples"
    w_max: int = 2**17
    metric_max: float = 2.0**20
    query_max: float = 2.0**40
    max_metrics: int = 1024
    train_metrics: tuple[str, ...] = ()
    evaluate_metrics: tuple[str, ...] = ()
    clip_norm: float = 0.0
    norm_proof: Literal["", "l2"] = ""
    clipping: Literal["repeat", "warn", "fail"] = "repeat"
    quorum: int = 0
    max_corrupt: float = 0.05
    max_dropout: float = 0.1
    key_agreement: Literal["auto", "x25519", "x25519-mlkem768"] = "auto"
    min_clients: int = 0
    join_seconds: float = 300.0
    train_seconds: float = 3600.0
    step_seconds: float = 60.0
    liveness_seconds: float = 15.0
    pause_seconds: float = 120.0
    transfer_seconds: float = 1800.0
    slow_lines: Literal["wait", "leave-out"] = "wait"
    sites: Literal["near", "remote"] = "near"
    app_seconds: float = 3600.0
    max_attempts: int = 3
    over_selection: float = 0.0
    asynchrony: Literal["none", "buffered"] = "none"
    buffer_size: int = 0
    concurrency: int = 0
    staleness: Literal["sqrt", "constant"] = "sqrt"
    max_staleness: int = 10
    groups: int = 1
    min_groups: int = 0
    best_model: str = ""
    dp_epsilon: float = 0.0
    dp_delta: float = 1e-5
    dp_noise_multiplier: float = 0.0
    dp_rounds: int = 0
    dp_mechanism: Literal["skellam", "discrete-gaussian"] = "skellam"
    dp_metric_bound: float = 0.0

    def __post_init__(self) -> None:
        positive = (
            "w_max", "metric_max", "max_metrics", "query_max", "join_seconds", "train_seconds", "step_seconds",
            "liveness_seconds", "pause_seconds", "transfer_seconds", "app_seconds", "max_attempts", "groups",
        )  # fmt: skip
        for name in positive:
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{kebab(name)} must be greater than 0")
        defaulted = (
            "clip_norm", "quorum", "min_clients", "dp_epsilon", "dp_noise_multiplier", "dp_rounds", "dp_metric_bound",
            "buffer_size", "concurrency",
            "min_groups",
        )  # fmt: skip
        for name in defaulted:
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{kebab(name)} must not be negative; 0 stands for the default")
        for name in ("max_corrupt", "max_dropout"):
            if not 0 <= getattr(self, name) < 1 / 3:
                raise ConfigurationError(f"{kebab(name)} must be at least 0 and less than a third")
        if self.over_selection:
            self._check_over_selection()
        self._check_upload()
        self._check_asynchrony()
        self._check_groups()
        if self.download_bits != 32:
            self._check_download_bits()
        if not 0 < self.dp_delta < 1:
            raise ConfigurationError("dp-delta must be greater than 0 and less than 1; below 1 / clients is usual")
        for name in ("train_metrics", "evaluate_metrics"):
            _metric_names(name, getattr(self, name))
        if self.private:
            self._check_private()
        self._check_norm_proof()
        if BestRule.parse(self.best_model) is not None:
            self._check_best()

    @property
    def dropout(self) -> float:
        """The fraction of a cohort that drops out as expected, those included that are asked beyond what is wanted."""
        return (self.max_dropout + self.over_selection) / (1 + self.over_selection)

    @property
    def stage_seconds(self) -> float:
        """How long the longest stage of an exchange may last."""
        return self.step_seconds + self.train_seconds + self.transfer_seconds

    @property
    def buffered(self) -> bool:
        """Whether no training waits for its slowest client."""
        return self.asynchrony == "buffered"

    @property
    def least_groups(self) -> int:
        """How many groups of a training have to give a sum."""
        return self.min_groups or self.groups // 2 + 1

    @property
    def private(self) -> bool:
        """Whether the run is differentially private."""
        return bool(self.dp_epsilon or self.dp_noise_multiplier)

    def metrics_of(self, training: bool) -> tuple[tuple[str, int | None], ...] | None:
        """Names and lengths of the metrics of training or of evaluation, sorted; None if they are not set."""
        name = "train_metrics" if training else "evaluate_metrics"
        return _metric_names(name, getattr(self, name)) or None

    @property
    def compresses(self) -> bool:
        """Whether uploads are compressed: rotated, and rounded to few bits or sent in part."""
        from fedcore.codec.settings import compresses  # late: completion reads the names of settings alone

        return self.field_bits == "auto" or compresses(self.upload_fraction, self.field_bits)

    def _check_upload(self) -> None:
        from fedcore.codec.settings import LEAST_UPLOAD

        if self.upload_fraction and not LEAST_UPLOAD <= self.upload_fraction <= 1:
            raise ConfigurationError(
                f"upload-fraction must be from {LEAST_UPLOAD:.4f} to 1, a part of the model's size in float32; 0 "
                "stands for what field-bits make of it"
            )
        if not self.compresses:
            return
        what = "upload-fraction" if self.upload_fraction else f"field-bits = {self.field_bits}"
        if self.aggregation != "secure":
            raise ConfigurationError(
                f'{what} needs aggregation = "secure": a plain reply is sent as the app made it', check="needs-secure"
            )
        if self.private:
            raise ConfigurationError(
                f"{what} cannot be used with differential privacy, whose noise is made for every coordinate in 32 bits",
                check="conflict",
            )
        if self.clipping == "warn":
            raise ConfigurationError(
                f'{what} cannot be used with clipping = "warn": what is cut off after a rotation is a part of every '
                "element of the update",
                check="conflict",
            )

    def _check_best(self) -> None:
        if self.aggregation != "secure":
            raise ConfigurationError(
                'best-model needs aggregation = "secure": of a plain exchange the server does not read the model',
                check="needs-secure",
            )
        if self.private and not self.dp_metric_bound:
            raise ConfigurationError(
                "best-model with differential privacy needs dp-metric-bound: without it clients are asked for no "
                "evaluation, since nothing unnoised may say which model fits their data"
            )

    def _check_asynchrony(self) -> None:
        if not 0 <= self.max_staleness <= MOST_STALENESS:
            raise ConfigurationError(
                f"max-staleness must be from 0 to {MOST_STALENESS}: what an update counts is public and falls with its "
                "age, so a sum of very old ones and a new one would be that of the new one"
            )
        if not self.buffered:
            for name in BUFFERED_SETTINGS:
                if self.to_mapping()[name] != BUFFERED_SETTINGS[name]:
                    raise ConfigurationError(
                        f'{name} is for asynchrony = "buffered"; a round has no use for it', check="conflict"
                    )
            return
        if self.aggregation != "secure":
            raise ConfigurationError(
                'asynchrony = "buffered" needs aggregation = "secure": a buffer is a secure sum', check="needs-secure"
            )
        for name, is_set in (("over-selection", bool(self.over_selection)), ("differential privacy", self.private)):
            if is_set:
                raise ConfigurationError(
                    f'{name} cannot be used with asynchrony = "buffered": who is in a sum depends on how fast it is',
                    check="conflict",
                )
        if self.groups > 1:
            raise ConfigurationError(
                'groups cannot be used with asynchrony = "buffered": who is ready would decide who is with whom',
                check="conflict",
            )

    def _check_groups(self) -> None:
        if self.min_groups > self.groups:
            raise ConfigurationError(f"min-groups is {self.min_groups}, but there are groups = {self.groups}")
        if self.groups == 1:
            return
        if self.aggregation != "secure":
            raise ConfigurationError(
                'groups needs aggregation = "secure": in a plain run the strategy has every single update anyway',
                check="needs-secure",
            )
        if self.private:
            raise ConfigurationError(
                "groups cannot be used with differential privacy: the noise is made for one sum over the whole cohort",
                check="conflict",
            )
        if self.over_selection:
            raise ConfigurationError(
                "groups cannot be used with over-selection: who is fast would decide what is left of a group",
                check="conflict",
            )

    def _check_download_bits(self) -> None:
        if self.aggregation != "secure":
            raise ConfigurationError(
                'download-bits = 16 needs aggregation = "secure": a plain message goes to its client unread',
                check="needs-secure",
            )
        if self.buffered:
            raise ConfigurationError(
                'download-bits = 16 cannot be used with asynchrony = "buffered", where clients begin from models of '
                "several ages",
                check="conflict",
            )

    def _check_over_selection(self) -> None:
        if self.over_selection < 0:
            raise ConfigurationError("over-selection must not be negative; 0 asks nobody beyond those that are wanted")
        if self.aggregation != "secure":
            raise ConfigurationError(
                'over-selection needs aggregation = "secure": a plain exchange has a message for each client that the '
                "strategy chose, and waits for its answer",
                check="needs-secure",
            )
        if self.private:
            raise ConfigurationError(
                "over-selection cannot be used with differential privacy: how fast a client is may depend on its data, "
                "so these would decide whose update has a part in the sum, for which the noise is not made",
                check="conflict",
            )
        if not self.dropout < 1 / 3:
            raise ConfigurationError(
                "over-selection and max-dropout together let a third of a cohort drop out, or more; the shares of the "
                f"others are not sure to be enough then. With max-dropout = {self.max_dropout:g}, over-selection must "
                f"be below {(1 - 3 * self.max_dropout) / 2:.3g}"
            )

    def _check_private(self) -> None:
        if self.aggregation != "secure":
            raise ConfigurationError(
                'differential privacy needs aggregation = "secure": each client adds only a share of the noise, and an '
                "update that the server can read is not hidden by it"
            )
        if not self.clip_norm:
            raise ConfigurationError("differential privacy needs clip-norm, the L2 bound on a client's update")
        if not self.dp_noise_multiplier and not self.dp_rounds:
            raise ConfigurationError(
                "dp-epsilon needs dp-rounds, the rounds that the budget must last for, or dp-noise-multiplier"
            )
        if self.dp_metric_bound and not self.evaluate_metrics:
            raise ConfigurationError(
                "dp-metric-bound needs evaluate-metrics, the names of the metrics that clients report (as in "
                'evaluate-metrics = ["loss", "accuracy"]): a noised sum cannot tell them'
            )

    def _check_norm_proof(self) -> None:
        if not self.norm_proof:
            return
        if self.aggregation != "secure":
            raise ConfigurationError(
                'norm-proof needs aggregation = "secure": the server of a plain run can measure every update itself',
                check="needs-secure",
            )
        if not self.clip_norm:
            raise ConfigurationError("norm-proof needs clip-norm, the L2 bound that each client's update is proved of")
        for name, is_set in (("differential privacy", self.private), ("a compressed upload", self.compresses)):
            if is_set:
                raise ConfigurationError(
                    f"{name} cannot be used with norm-proof: the proof is about the update alone, in 32 bits",
                    check="conflict",
                )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, where: str = "[tool.fedcore]") -> Self:
        """Build from kebab-case keys; raises UnknownKey or ConfigurationError."""
        return cls(**arguments(cls, with_sites(values), where))

    def to_mapping(self) -> dict[str, Any]:
        """The inverse of `from_mapping`: every key, kebab-case."""
        values = {kebab(field.name): getattr(self, field.name) for field in dataclasses.fields(self)}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    def for_clients(self) -> dict[str, Any]:
        """Those that decide what a client computes and sends, which its owner agrees to; kebab-case, as in JSON."""
        bound = {key: value for key, value in self.to_mapping().items() if key not in SERVER_SETTINGS}
        if not self.norm_proof:  # earlier versions do not know the key, and need not
            del bound["norm-proof"]
        return {key: list(value) if isinstance(value, tuple) else value for key, value in bound.items()}


def planned_rounds(run_config: Mapping[str, Any]) -> int | None:
    """How many rounds an app plans, by Flower's own key; None if its run config does not say so."""
    rounds = run_config.get(ROUNDS_KEY)
    return rounds if type(rounds) is int else None


def _metric_names(key: str, texts: Iterable[str]) -> tuple[tuple[str, int | None], ...]:
    """Names and lengths from "name" and "name:4", sorted."""
    names: dict[str, int | None] = {}
    for text in texts:
        name, colon, length = text.rpartition(":")
        if not colon:
            name, length = text, ""
        if not name or name in names or (colon and not re.fullmatch(r"[1-9]\d{0,3}", length)):
            raise ConfigurationError(
                f'{kebab(key)} names {text!r}; each name once, as "loss", or "per_class:10" for a list of 10 numbers'
            )
        names[name] = int(length) if colon else None
    return tuple(sorted(names.items()))
