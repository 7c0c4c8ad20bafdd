"""Progress of a run: one lasting line for each exchange, and on a terminal a live part below them.

The live part has one line for the stage, with the round and the time that is left, and a table of the sites. Of many
clients neither names nor a table are shown, but how many they are.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from fedcore.monitoring.eta import Eta, in_words
from fedcore.monitoring.site_table import MOST_ROWS, SiteTable, in_sum
from fedcore.run.model_selection import BestRule
from fedcore.system.terminal import escape
from fedcore.trees.limits import MESSAGE_TYPE, TEST_TYPE
from fedcore.wire.events import (
    AppPrinted,
    ClientBlamed,
    ClientDropped,
    ClientsOnline,
    ExchangeDone,
    ExchangeFailed,
    ExchangeRepeated,
    ExchangeStarted,
    FiguresFound,
    GroupEnded,
    PrivacyTerms,
    RunEnded,
    RunEvent,
    RunResumed,
    RunStarted,
    StageProgress,
    Warned,
    name_some,
)
from fedcore.wire.operator import RunClientOut
from fedcore.wire.tasks import is_query

_MOST_ITEMS: Final = 4
_OWN_LINES: Final = 3
"""Lines of the live part in addition to the table's rows, with one that stays free."""
_REFRESHES: Final = 4.0
"""A second."""
MANY: Final = 20
"""More clients than these are counted, and not named one by one."""
_MOST_REASONS: Final = 3
_WORTH_SAYING: Final = 10.0
"""Seconds that are left, in a line that stays."""
PLAIN_WARNING = 'aggregation = "plain": the server can read every update of this run'


class ProgressView:
    """Renders the events of a run on a console; on a terminal with a live part below the lines.

    Use as a context manager, so that the live part is always taken away, and the cursor is there again.

    live: whether a terminal has that part.
    clock: monotonic seconds.
    clients: of a simulation, which nobody has to look after.
    only_queries: whether the run asks a question, whose queries are no rounds, and whose number is not known before.
    """

    def __init__(
        self,
        console: Console,
        label: str,
        *,
        live: bool = True,
        clock: Callable[[], float] = time.monotonic,
        clients: int = 0,
        only_queries: bool = False,
    ) -> None:
        self._console = console
        self._label = label
        self._clock = clock
        self._began = clock()
        self._last_event = (0.0, self._began)
        """When the last event happened: in seconds of the run, and by the clock."""
        self._live: Live | None = None
        self._spinner = Spinner("dots")
        self._position, self._doing = "", "waiting"
        self._left = Eta()
        self._sites = SiteTable()
        self._wants_live = live and console.is_terminal and not console.is_dumb_terminal
        self._clients = -1
        self._crowd = clients > MANY
        self._many = self._crowd
        self._dropped: list[ClientDropped] = []
        self._work = ""
        self._rounds: int | None = None
        self._queries = 0
        """How many have ended."""
        self._grows_trees = False
        self._only_queries = only_queries

    @property
    def live(self) -> bool:
        """Whether there is a live part."""
        return self._live is not None

    @property
    def sites(self) -> int:
        """How many sites the events have named."""
        return len(self._sites.sites)

    def __enter__(self) -> ProgressView:
        if self._wants_live:
            self._live = Live(
                get_renderable=self.picture, console=self._console, refresh_per_second=_REFRESHES, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._tell_dropped()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def picture(self) -> RenderableType:
        """The live part as it stands."""
        width, height = self._console.size
        seconds, updated = self._last_event
        remaining = self._left.left(seconds + self._clock() - updated)
        position = (
            [self._position, *([f"{in_words(remaining)} left"] if remaining is not None else [])]
            if self._position
            else []
        )
        line = Text.assemble(f"{self._label}  ", (", ".join(position), "bold"), "  " if position else "", self._doing)
        line.no_wrap, line.overflow = True, "ellipsis"
        self._spinner.text = line
        if self._crowd:
            return Group(self._spinner, in_sum(self._sites)) if self._sites.sites else self._spinner
        table = self._sites.render(rows=min(height - _OWN_LINES, MOST_ROWS), width=width)
        return Group(self._spinner, table) if table is not None else self._spinner

    def hear(self, clients: Iterable[RunClientOut]) -> None:
        """Take what the server says of the clients now."""
        self._sites.hear(clients)

    def show(self, event: RunEvent, seconds: float | None = None) -> None:
        """Render one event; those without a line of their own are passed over.

        Args:
            seconds: since the run began, for an event that arrives later than it happened.
        """
        now = self._clock()
        self._last_event = (now - self._began if seconds is None else seconds, now)
        self._sites.follow(event)
        match event:
            case ClientsOnline():
                self._on_clients(event)
            case RunStarted():
                self._on_started(event)
            case ExchangeStarted():
                attempt = f" (attempt {event.attempt})" if event.attempt > 1 else ""
                self._many = self._crowd or len(event.cohort) > MANY
                self._left.begins(event.server_round, self._last_event[0])
                self._position = " ".join(self._which(event, self._queries + 1).split())
                self._work = self._doing = f"{event.message_type}{attempt}"
            case StageProgress():
                buffer = f"{event.done} of {event.expected} updates ready"
                stage = f"{self._work}: {event.stage} {event.done}/{event.expected}"
                self._doing = f"{buffer if event.stage == 'ready' else stage}  {event.seconds:.1f} s"
            case ClientDropped():
                self._on_dropped(event)
            case ClientBlamed():
                text = f"{event.client} violated the protocol during {event.stage} ({event.reason}), and is excluded"
                self._line(f"[red]{escape(text)}[/]")
            case ExchangeDone() | FiguresFound():
                self._on_done(event) if isinstance(event, ExchangeDone) else self._on_figures(event)
            case ExchangeFailed() | GroupEnded():
                self._on_failure(event)
            case AppPrinted():
                self._line(f"[dim]app:[/] {escape(event.line)}")
            case RunResumed() | Warned():
                text = f"the run goes on: {event.why}" if isinstance(event, RunResumed) else event.line
                self._line(f"[yellow]{escape(text)}[/]")
            case ExchangeRepeated():
                self._line(f"exchange {event.exchange}: {escape(_why_repeated(event))}")
            case RunEnded():
                self._tell_dropped()
                self._line(event.status.value + (f": {escape(event.reason)}" if event.reason else ""))

    def wait(self, text: str) -> None:
        """Say what the run waits for, in the live line."""
        self._doing = text

    def works(self, work: str, done: int, expected: int) -> None:
        """Say in the live line how many of the clients that were asked have done their work."""
        self._doing = f"{work}: {done:,} of {expected:,} clients"

    def _line(self, text: str) -> None:
        self._console.print(f"[bold]{escape(self._label)}[/]  {text}", highlight=False, soft_wrap=True)

    def _round(self, number: int) -> str:
        unit = "tree" if self._grows_trees else "round"
        return f"{unit} {number:>3} of {self._rounds}" if self._rounds else f"{unit} {number:>3}"

    def _which(self, event: ExchangeStarted | ExchangeDone, query: int) -> str:
        """Of a training its round, of a query its number, and while trees grow which of them it is for."""
        if not is_query(event.message_type):
            return self._round(event.server_round)
        self._grows_trees |= event.message_type in (MESSAGE_TYPE, TEST_TYPE)
        number = f"query {query:>3}"
        return f"{self._round(event.server_round)}, {number}" if self._grows_trees and event.server_round else number

    def _on_clients(self, event: ClientsOnline) -> None:
        if len(event.online) != self._clients:
            self._clients = len(event.online)
            online = event.online
            names = (name_some(online) if len(online) > MANY else ", ".join(online)) or "none yet"
            waiting = _waiting_for(event.absent, event.expected - len(event.online))
            telling = _telling(event.reporting, len(event.online))
            self._line(escape(f"{len(event.online)} of {event.expected} clients joined: {names}{waiting}{telling}"))

    def _on_dropped(self, event: ClientDropped) -> None:
        if self._many and event.exchange:
            self._dropped.append(event)
        else:
            text = f"{event.client} dropped out during {event.stage}: {event.reason}"
            self._line(f"[yellow]{escape(text)}[/]")

    def _on_started(self, event: RunStarted) -> None:
        self._rounds = self._left.rounds = None if self._only_queries else event.rounds
        if event.aggregation == "plain":
            self._line(f"[yellow]{PLAIN_WARNING}[/]")
        for line in privacy_lines(event.privacy) if event.privacy is not None else ():
            self._line(line)

    def _on_figures(self, event: FiguresFound) -> None:
        if text := metrics_text(event.metrics):
            where = "at the server" if event.source == "server" else f"{event.source}, all clients together"
            self._line(f"{self._round(event.server_round)}  {where}: {escape(text)}")

    def _on_failure(self, event: ExchangeFailed | GroupEnded) -> None:
        """A group that gave its sum is part of its round's line."""
        if not event.reason:
            return
        self._tell_dropped()
        which = f", group {event.group} of {event.groups}" if isinstance(event, GroupEnded) else ""
        what = "trying again" if event.retry else "giving up"
        unit = "query" if self._only_queries else "round"
        self._line(f"[red]{unit} {event.server_round}{which} failed: {escape(event.reason)}; {what}[/]")

    def _on_done(self, event: ExchangeDone) -> None:
        self._doing = "waiting"
        # A simulation tells of no beginnings.
        self._left.begins(event.server_round, self._last_event[0] - event.seconds)
        self._queries += is_query(event.message_type)
        which = self._which(event, self._queries)
        self._position = " ".join(which.split())
        metrics = metrics_text(event.metrics)
        epsilon = f"  epsilon {event.epsilon_spent:.3f}" if event.epsilon_spent is not None else ""
        text = f"  {escape(metrics)}" if metrics else ""
        if event.virtual_seconds:
            text = f"  virtual {event.virtual_seconds:.1f} s{text}"
        groups = f"{event.groups} groups  " if event.groups > 1 else ""
        if is_query(event.message_type):
            text = f"  {len(event.metrics)} sums" if event.metrics else ""
        count = len(event.survivors)
        clients = f"{count:,} clients" if count != 1 else "1 client "
        self._line(
            f"{which}  {event.message_type:<8}  {clients}  "
            f"{groups}{event.seconds:5.1f} s{text}{epsilon}{self._time_left()}"
        )
        self._tell_dropped()
        for warning in _warnings(event):
            self._line(f"[yellow]{warning}[/]")

    def _time_left(self) -> str:
        """For a line of a run that nobody sees a live part of."""
        remaining = None if self.live else self._left.left(self._last_event[0])
        return f"  ({in_words(remaining)} left)" if remaining is not None and remaining >= _WORTH_SAYING else ""

    def _tell_dropped(self) -> None:
        """Say of many clients how many dropped out of an exchange, why, and who some of them are."""
        dropped, self._dropped = self._dropped, []
        if not dropped:
            return
        reasons = Counter(f"{one.stage}: {one.reason}" for one in dropped).most_common()
        why = [f"{count:,} {reason}" if len(reasons) > 1 else reason for reason, count in reasons[:_MOST_REASONS]]
        if rest := sum(count for _, count in reasons[_MOST_REASONS:]):
            why.append(f"{rest:,} for other reasons")
        names = name_some(list(dict.fromkeys(one.client for one in dropped)))
        text = f"{len(dropped):,} dropped out ({', '.join(why)}): {names}"
        self._line(f"[yellow]{escape(text)}[/]")


def _warnings(event: ExchangeDone) -> list[str]:
    """What a person should know of an exchange that was completed anyway."""
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


def _why_repeated(event: ExchangeRepeated) -> str:
    if event.coarse:
        return f"too much of the update of tensor {event.coarse!r} would be rounding; repeated with wider fields"
    large = f"{event.large} of {event.survivors} clients"
    return f"the updates of {large} are larger than the scales; repeated with wider ones"


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
    visible = {name: value for name, value in metrics.items() if not name.endswith("/sums")}
    return "  ".join(f"{name} {_number(value)}" for name, value in visible.items())


def ended_line(name: str, rounds: int, metrics: Mapping[str, Any], *, best_model: str = "") -> str:
    """What a run came to: its rounds, and its last metrics if it has any.

    Args:
        name: of the run or the app.
        rounds: how many.
        metrics: by name.
        best_model: the setting; the metric that it chooses by comes first.
    """
    rule = BestRule.parse(best_model)
    first = {rule.metric: metrics[rule.metric]} if rule is not None and rule.metric in metrics else {}
    length = "1 round" if rounds == 1 else f"{rounds} rounds"
    return ", ".join(filter(None, (f"{name}: {length}", metrics_text({**first, **metrics}))))


def _number(value: Any) -> str:
    if isinstance(value, list):
        first = ", ".join(_number(item) for item in value[:_MOST_ITEMS])
        return f"[{first}]" if len(value) <= _MOST_ITEMS else f"[{first}, ... {len(value)} values]"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
