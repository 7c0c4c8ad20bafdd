"""A federation in memory: the state machines of the real server and the real clients, without a network.

Every message, check, mask and dropout is the real one; what is missing are sockets, disks and waiting. So a result that
is simulated is a result of the protocol, and what a deployment would refuse is refused here too.

`run` is the whole: it answers a ServerApp's requests by exchanges. A secure exchange is one sum of a cohort (`cohort`)
or one for each of its groups (`grouped`), with as many attempts as it takes; an attempt (`secure`) is a
`memory_round.MemoryRound` between one ServerRound and as many ClientSessions as there are clients (`sessions`), whose
owners (`owners`) check what real ones check. A plain exchange is in `plain`. An executor (`workers`) trains: it takes a
task and clients, and returns what their apps made, in any order. A dropout model (`dropouts`) decides who leaves an
exchange, and before which step.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcore.simulation.facts import best_facts, model_facts
    from fedcore.simulation.models import BestModel, model_ref
    from fedcore.simulation.run import Simulation

__all__ = ["BestModel", "Simulation", "best_facts", "model_facts", "model_ref"]


def __getattr__(name: str) -> Any:
    """The names above, imported when they are used: the command's help needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = {"Simulation": "run", "best_facts": "facts", "model_facts": "facts"}.get(name, "models")
    return getattr(importlib.import_module(f"fedcore.simulation.{home}"), name)
