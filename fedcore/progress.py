"""What a person sees while a run goes on: one lasting line for each exchange, one live line for the current stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from fedcore.events import (
    AppPrinted,
    ClientBlamed,
    ClientDropped,
    ClientsOnline,
    ExchangeDone,
    ExchangeFailed,
    ExchangeRepeated,
    ExchangeStarted,
    PrivacyTerms,
    RunEnded,
    RunEvent,
    RunStarted,
    StageProgress,
    Warned,
    name_some,
)
from fedcore.wire import is_query

_LIST_SHOWN: Final = 4
PLAIN_WARNING = 'aggregation = "plain": the server can read every update of this run'


class ProgressView:
    """Renders the events of a run on a console; on a terminal the current stage is a live line.

    Use as a context manager, so that the live line is always taken away.
    """

    def __init__(self, console: Console, label: str) -> None:
        self._console = console
        self._label = escape(label)
        self._status: Status | None = None
        self._clients = -1
        self._exchange = ""
        self._rounds: int | None = None

    def __enter__(self) -> ProgressView:
        if self._console.is_terminal:
            self._status = self._console.status(f"{self._label}: waiting")
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, event: RunEvent) -> None:
        """Render one event; those without a line of their own are passed over."""
        match event:
            case ClientsOnline():
                self._on_clients(event)
            case RunStarted():
                self._on_started(event)
            case ExchangeStarted():
                attempt = f" (attempt {event.attempt})" if event.attempt > 1 else ""
                self._exchange = f"round {self._round(event.server_round)} {event.message_type}{attempt}"
                self._live(self._exchange)
            case StageProgress():
                self._live(f"{self._exchange}: {event.stage} {event.done}/{event.expected}  {event.seconds:.1f} s")
            case ClientDropped():
                text = f"{event.client} dropped out during {event.stage}: {event.reason}"
                self._line(f"[yellow]{escape(text)}[/]")
            case ClientBlamed():
                text = f"{event.client} cheated during {event.stage} ({event.reason}) and is asked no more in this run"
                self._line(f"[red]{escape(text)}[/]")
            case ExchangeDone():
                self._on_done(event)
            case ExchangeFailed():
                what = "trying again" if event.retry else "giving up"
                self._line(f"[red]round {event.server_round} failed: {escape(event.reason)}; {what}[/]")
            case AppPrinted():
                self._line(f"[dim]app:[/] {escape(event.line)}")
            case Warned():
                self._line(f"[yellow]{escape(event.line)}[/]")
            case ExchangeRepeated():
                text = f"the updates of {event.large} of {event.survivors} clients are larger than the scales"
                self._line(f"exchange {event.exchange}: {text}; repeated with wider ones")
            case RunEnded():
                self._line(event.status.value + (f": {escape(event.reason)}" if event.reason else ""))

    def _line(self, text: str) -> None:
        self._console.print(f"[bold]{self._label}[/]  {text}", highlight=False, soft_wrap=True)

    def _live(self, text: str) -> None:
        if self._status is not None:
            self._status.update(f"{self._label}: {text}")

    def _round(self, number: int) -> str:
        return f"{number:>3} of {self._rounds}" if self._rounds else f"{number:>3}"

    def _on_clients(self, event: ClientsOnline) -> None:
        if len(event.online) != self._clients:
            self._clients = len(event.online)
            names = ", ".join(event.online) or "none yet"
            waiting = _waiting_for(event.absent, event.expected - len(event.online))
            telling = _telling(event.reporting, len(event.online))
            self._line(escape(f"{len(event.online)} of {event.expected} clients joined: {names}{waiting}{telling}"))

    def _on_started(self, event: RunStarted) -> None:
        self._rounds = event.rounds
        if event.aggregation == "plain":
            self._line(f"[yellow]{PLAIN_WARNING}[/]")
        for line in privacy_lines(event.privacy) if event.privacy is not None else ():
            self._line(line)

    def _on_done(self, event: ExchangeDone) -> None:
        metrics = metrics_text(event.metrics)
        epsilon = f"  epsilon {event.epsilon_spent:.3f}" if event.epsilon_spent is not None else ""
        shown = f"  {escape(metrics)}" if metrics else ""
        if is_query(event.message_type):
            shown = f"  {len(event.metrics)} sums" if event.metrics else ""
        self._line(
            f"round {self._round(event.server_round)}  {event.message_type:<8}  {len(event.survivors)} clients  "
            f"{event.seconds:5.1f} s{shown}{epsilon}"
        )
        for warning in _warnings(event):
            self._line(f"[yellow]{warning}[/]")


def _warnings(event: ExchangeDone) -> list[str]:
    """What a person should know of an exchange that was completed all the same."""
    about = "about " if event.epsilon_spent is not None else ""
    failed = f"{about}{event.failures} of {len(event.survivors)} clients contributed nothing; their own logs say why"
    differ = "the clients do not agree on the names of their metrics, so this exchange has none"
    lost = (
        f"{event.lost_norm:.2%} of the updates' norm did not fit into the scales and was cut off (clipped "
        f'{event.clipped}); clipping = "repeat" loses nothing'
    )
    return (
        ([failed] if event.failures else [])
        + ([lost] if event.clipped else [])
        + ([] if event.metrics_agree else [differ])
    )


def _waiting_for(absent: Sequence[str], missing: int) -> str:
    """Which clients hold up a run: all of those that are absent, or some of them."""
    if missing <= 0 or not absent:
        return ""
    names = name_some(absent)
    return f"; waiting for {names}" if missing == len(absent) else f"; waiting for {missing} of {names}"


def _telling(reporting: Sequence[str], online: int) -> str:
    """Whose failures the operator will hear of, where some tell of them and others do not."""
    return f"; told of failures by {name_some(reporting)} only" if 0 < len(reporting) < online else ""


def privacy_lines(privacy: PrivacyTerms) -> tuple[str, str]:
    """What a person should know about a differentially private run before it begins."""
    budget = f"the run stops at epsilon {privacy.epsilon_budget:g}" if privacy.epsilon_budget else "no budget"
    metrics = (
        f"metrics of evaluations are clipped to ±{privacy.metric_bound:g} and noised like an update"
        if privacy.metric_bound
        else "clients are asked for no evaluation (set dp-metric-bound, or evaluate in the ServerApp)"
    )
    return (
        f"differential privacy of each client: {privacy.mechanism}, "
        f"noise multiplier {privacy.noise_multiplier:g}, clip norm {privacy.clip_norm:g}, "
        f"delta {privacy.delta:g}, {budget}",
        f"every client weighs the same; examples and metrics of training stay with the clients; {metrics}",
    )


def epsilon_line(privacy: PrivacyTerms, epsilon_spent: float) -> str:
    """What a differentially private run guarantees to each client."""
    budget = f" (budget {privacy.epsilon_budget:g})" if privacy.epsilon_budget else ""
    return (
        f"each client has ({epsilon_spent:.3f}, {privacy.delta:g})-differential privacy{budget}, the whole run together"
    )


def metrics_text(metrics: Mapping[str, Any]) -> str:
    """Metrics for a line that a person reads; long lists are cut, and sums that others are made of are left out."""
    shown = {name: value for name, value in metrics.items() if not name.endswith("/sums")}
    return "  ".join(f"{name} {_number(value)}" for name, value in shown.items())


def _number(value: Any) -> str:
    if isinstance(value, list):
        first = ", ".join(_number(item) for item in value[:_LIST_SHOWN])
        return f"[{first}]" if len(value) <= _LIST_SHOWN else f"[{first}, ... {len(value)} values]"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
