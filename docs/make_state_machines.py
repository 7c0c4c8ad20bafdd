"""Write docs/state-machines.md from the transition tables: `python docs/make_state_machines.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedcore.secagg.transitions import render_diagram, render_machine
from server_app.exchanges.exchange import Exchange
from server_app.exchanges.group_assignment import DrawExchange
from server_app.exchanges.plain import PlainExchange
from server_app.exchanges.secure import SecureExchange
from server_app.exchanges.stages import PARTICIPANT_TRANSITIONS, PHASE_TRANSITIONS

TARGET = Path(__file__).with_name("state-machines.md")
KINDS: Mapping[str, type[Exchange]] = {"secure": SecureExchange, "plain": PlainExchange, "draw of groups": DrawExchange}


def render() -> str:
    """The page."""
    return (
        "# The protocol's state machines\n\n"
        "Generated from the table in `fedcore/secagg/transitions.py`, and at the end from those in\n"
        "`server_app/exchanges/stages.py`, by `python docs/make_state_machines.py`; a test fails where they differ.\n"
        "Any event that has no arrow is refused and changes nothing; a repeated message gets its earlier answer.\n\n"
        f"```mermaid\n{render_diagram()}```\n\n"
        "## An exchange at the server\n\n"
        "The server leads every exchange through its stages, and keeps for each client the state of its update and\n"
        "whether it is still there. A stage does not end over a client that is `admitted` or `leaving`; the server\n"
        "tells the protocol who has left (`dropped` and `left`) just before each of its stages ends. The step to the\n"
        "next stage is [committed](protocol.md#a-server-that-restarts) before anybody sees it.\n\n"
        f"```mermaid\n{_exchange_diagram()}```\n\n"
        "Which stages there are depends on the kind of the exchange. A new message is taken in its own stage only.\n\n"
        f"{_stages_table()}\n"
        "A [draw](protocol.md#groups) sums nothing: its cohort continues in the secure exchanges of its groups.\n"
    )


def _exchange_diagram() -> str:
    phases = [(source, event, target) for (source, event), target in PHASE_TRANSITIONS.items()]
    states = [(source, event, target) for (source, event), target in PARTICIPANT_TRANSITIONS.items()]
    lines = ["stateDiagram-v2", *render_machine("Stage", phases), *render_machine("Participant", states)]
    return "\n".join(lines) + "\n"


def _stages_table() -> str:
    lines = ["| exchange | stage | messages |", "| --- | --- | --- |"]
    for name, kind in KINDS.items():
        for stage in kind.stage_names:
            steps = ", ".join(step for step, taken_in in kind.steps.items() if taken_in == stage)
            lines.append(f"| {name} | {stage} | {steps} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
