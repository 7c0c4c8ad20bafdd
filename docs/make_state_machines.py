"""Write docs/state-machines.md from the transition table: `python docs/make_state_machines.py`."""

from __future__ import annotations

from pathlib import Path

from fedcore.secagg.transitions import render_diagram

TARGET = Path(__file__).with_name("state-machines.md")


def render() -> str:
    """The page."""
    return (
        "# The protocol's state machines\n\n"
        "Generated from the one table in `fedcore/secagg/transitions.py` by `python docs/make_state_machines.py`;\n"
        "a test fails where the two differ. Any event that has no arrow is refused and changes nothing; a repeated\n"
        "message gets its earlier answer.\n\n"
        f"```mermaid\n{render_diagram()}```\n"
    )


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
