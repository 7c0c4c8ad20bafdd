"""What a client is asked about a model: one digest over everything that can change what its app sends.

A client answers one question about a model and purpose. Another one could be chosen so that the two answers together
tell what each hides: a bound on either side of one client's update, a weight that is zero everywhere but at one site.
So the digests of all sums of one model and purpose have to be equal. A key for which the owner's policy has a rule
(`allow-config`) is left out of the digest: its owner has agreed to be asked with each of the values that the rule
allows, `num-server-rounds` in a stock policy among them.

`COVERED` and `ELSEWHERE` together name every field of a task; a test holds that, so a field that is added is decided
on. Bounds and scales have a rule of their own (`releases`), and so has the model, which is what a sum is counted under.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fedcore.federation import Policy
from fedcore.federation.policy import ANY_KEY, SETTINGS_PREFIX
from fedcore.wire.tasks import Task

ROUND_KEY: Final = "server-round"
"""The key under which Flower's strategies send the round. An owner's rule for it leaves the round to the run."""
QUESTION_TAG: Final = "fedcore/question/v1"

COVERED: Final = frozenset(
    {"server_round", "message_type", "aggregation", "run_config", "settings", "arrays_key", "configs", "weight_key"}
)
"""Fields of a task that the digest covers."""

ELSEWHERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "run": "a name; the app sees a number that is made of it, which orders examples at most",
        "exchange": "counts exchanges; apps do not see it",
        "attempt": "likewise",
        "app_sha256": "the owner installed or approved that very app",
        "model": "what sums are counted under, by the SHA-256 of a file that its tensors determine",
        "cohort": "the groups rule, over the survivors",
        "quorum": "the owner's least cohort and threshold",
        "protection": "likewise",
        "encoding": "bounds and scales are compared between sums of one model",
        "roster": "must be the client's own",
        "previous": "must be the head of the client's own transcript",
        "version": "work for a later sum; its update enters one sum",
        "buffer": "an update of a buffered exchange enters the sums of one set of updates",
        "cut": "a draw asks for no work",
        "group": "follows from a draw that the client answered",
        "places": "`group` has their hash",
        "seconds": "must leave half of train-seconds",
        "message": "of a plain exchange, whose update the server reads anyway",
    }
)
"""The other fields: what binds each, or why it cannot change what a client sends."""


def question_digest(task: Task, policy: Policy) -> str:
    """SHA-256, hex, over what this task asks about its model, without the keys that the owner lets a run choose."""
    rules = policy.allow_config
    open_run = ANY_KEY in rules
    run_config = {} if open_run else {key: value for key, value in task.run_config.items() if key not in rules}
    settings = {} if open_run else {k: v for k, v in task.settings.items() if SETTINGS_PREFIX + k not in rules}
    configs = {
        name: {key: value for key, value in config.items() if not _is_open(key, task, policy)}
        for name, config in task.configs.items()
    }
    covered = task.model_dump(mode="json", include=set(COVERED) - ({"server_round"} if ROUND_KEY in rules else set()))
    covered |= {"run_config": run_config, "settings": settings, "configs": configs}
    text = json.dumps(covered, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(f"{QUESTION_TAG}\x00{text}".encode("ascii")).hexdigest()


def _is_open(key: str, task: Task, policy: Policy) -> bool:
    """Whether a rule of the owner covers the key of a message; the rule for all keys covers those of the run config."""
    return key in policy.allow_config or (ANY_KEY in policy.allow_config and key in task.run_config)
