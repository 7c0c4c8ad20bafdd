"""What a person sees while a run goes on: one lasting line for each exchange, one live line for the current stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status

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

    def __enter__(self) -> ProgressView:
        if self._console.is_terminal:
            self._status = self._console.status(f"{self._label}: waiting")
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, kind: str, data: Mapping[str, Any]) -> None:
        """Render one event; kinds without a line of their own are passed over."""
        render = getattr(self, f"_on_{kind.replace('-', '_')}", None)
        if render is not None:
            render(data)

    def _line(self, text: str) -> None:
        self._console.print(f"[bold]{self._label}[/]  {text}", highlight=False, soft_wrap=True)

    def _live(self, text: str) -> None:
        if self._status is not None:
            self._status.update(f"{self._label}: {text}")

    def _on_clients(self, data: Mapping[str, Any]) -> None:
        online = data["online"]
        if len(online) != self._clients:
            self._clients = len(online)
            names = escape(", ".join(online)) or "none yet"
            self._line(f"{len(online)} of {data['expected']} clients joined: {names}")

    def _on_started(self, data: Mapping[str, Any]) -> None:
        if data["aggregation"] == "plain":
            self._line(f"[yellow]{PLAIN_WARNING}[/]")
        if data.get("privacy"):
            for line in privacy_lines(data["privacy"]):
                self._line(line)

    def _on_exchange(self, data: Mapping[str, Any]) -> None:
        attempt = f" (attempt {data['attempt']})" if data["attempt"] > 1 else ""
        self._exchange = f"round {data['server_round']} {data['message_type']}{attempt}"
        self._live(self._exchange)

    def _on_stage(self, data: Mapping[str, Any]) -> None:
        self._live(f"{self._exchange}: {data['stage']} {data['done']}/{data['expected']}  {data['seconds']:.1f} s")

    def _on_dropped(self, data: Mapping[str, Any]) -> None:
        text = f"{data['client']} dropped out during {data['stage']}: {data['reason']}"
        self._line(f"[yellow]{escape(text)}[/]")

    def _on_exchange_done(self, data: Mapping[str, Any]) -> None:
        metrics = "  ".join(f"{name} {_number(value)}" for name, value in data["metrics"].items())
        clipped = f"  clipped {data['clipped']}" if data.get("clipped") else ""
        epsilon = f"  epsilon {data['epsilon']:.3f}" if "epsilon" in data else ""
        shown = f"  {escape(metrics)}" if metrics else ""
        self._line(
            f"round {data['server_round']:>3}  {data['message_type']:<8}  {len(data['survivors'])} clients  "
            f"{data['seconds']:5.1f} s{shown}{clipped}{epsilon}"
        )

    def _on_exchange_failed(self, data: Mapping[str, Any]) -> None:
        what = "trying again" if data["retry"] else "giving up"
        self._line(f"[red]round {data['server_round']} failed: {escape(data['reason'])}; {what}[/]")

    def _on_ended(self, data: Mapping[str, Any]) -> None:
        reason = f": {escape(data['reason'])}" if data["reason"] else ""
        self._line(f"{data['status']}{reason}")


def privacy_lines(privacy: Mapping[str, Any]) -> tuple[str, str]:
    """What a person should know about a differentially private run before it begins."""
    budget = f"the run stops at epsilon {privacy['epsilon']:g}" if privacy["epsilon"] else "no budget"
    bound = privacy["metric_bound"]
    metrics = (
        f"metrics of evaluations are clipped to ±{bound:g} and noised like an update"
        if bound
        else "clients are asked for no evaluation (set dp-metric-bound, or evaluate in the ServerApp)"
    )
    return (
        f"differential privacy of each client: {privacy['mechanism']}, "
        f"noise multiplier {privacy['noise_multiplier']:g}, clip norm {privacy['clip_norm']:g}, "
        f"delta {privacy['delta']:g}, {budget}",
        f"every client weighs the same; examples and metrics of training stay with the clients; {metrics}",
    )


def epsilon_line(summary: Mapping[str, Any]) -> str:
    """What a differentially private run guarantees to each client, from the summary of its record."""
    budget = summary["privacy"]["epsilon"]
    return (
        f"each client has ({summary['epsilon']:.3f}, {summary['privacy']['delta']:g})-differential privacy"
        f"{f' (budget {budget:g})' if budget else ''}, the whole run together"
    )


def _number(value: Any) -> str:
    if isinstance(value, list):
        return f"[{len(value)} values]"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
