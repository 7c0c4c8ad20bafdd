"""policy.toml as `provision` writes it: every key with its value, and what it is for."""

from __future__ import annotations

import json
import re
from typing import Final

from fedcore.federation.eligibility import EligibilityRules
from fedcore.federation.policy import ConfigRule, Policy

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_HEAD: Final = """\
# What this client insists on: it refuses what asks for less, whatever the server says, and tells it the name of the
# check and the key, nothing else.
"""


def policy_text(policy: Policy) -> str:
    """The file's text; `Policy.load` reads the same policy from it."""
    parts = (_HEAD, _sums(policy), _config(policy), _bounds(policy), _hours(policy.eligibility))
    return "\n".join(parts)


def _sums(policy: Policy) -> str:
    return f"""\
# The fewest clients, this one included, that do not help the server and are in the same sum. From 3 on, no single
# member can subtract its own update from the sum and read another's; with 2 it can.
min-cohort = {policy.min_cohort}

# The fewest clients that must work together to remove a mask. A server with fewer of them on its
# side learns nothing but the sum. At most min-cohort; the usual threshold for n clients is 2n/3,
# rounded down, plus 1.
min-threshold = {policy.min_threshold}

# The SHA-256 of the only app that this client agrees to run, as `fedcore client` prints it when it
# starts. Empty: the app that its owner installed and named on the command line, as it stands.
app-sha256 = "{policy.app_sha256 or ""}"

# Whether the server may read this client's updates one by one, without secure aggregation
# (aggregation = "plain").
allow-plain = {_bool(policy.allow_plain)}

# Whether its updates may be summed with updates that began from other models (asynchrony = "buffered"). A server that
# follows the protocol learns no more from such a sum; one that lies can give the other clients models from which they
# learn nothing, and then the sum is this client's update.
allow-buffered = {_bool(policy.allow_buffered)}

# The fraction of the roster's members that must be able to help the server without it learning more
# than the sum.
min-corrupt = {float(policy.min_corrupt)}

# Whether keys may be agreed with X25519 alone. If not, ML-KEM-768 comes on top, so that uploads
# that somebody records today stay closed to a later quantum computer.
allow-x25519 = {_bool(policy.allow_x25519)}

# How much all sums with this client in them may reveal about it, all runs together: the epsilon of
# (epsilon, delta)-differential privacy. 0: its owner does not insist on noise. With another value a
# run without enough noise is refused, and so is every exchange that would go over it. What has been
# spent is kept in the ledger of the state folder.
max-epsilon = {policy.max_epsilon}
delta = {policy.delta}

# The same of a single row of this client: how much all sums together may reveal about one. Noise for rows, such as
# boosted trees have with epsilon, counts here alone, so an owner with max-epsilon allows these by this key. 0: no
# demand.
max-row-epsilon = {policy.max_row_epsilon}

# Whether this client reports that and why the app failed here. If not, a failure goes into the sum as a zero: the
# server learns how many clients failed, not which, and the reason stays in this client's log.
report-failures = {_bool(policy.report_failures)}

# An upload begins at the next whole multiple of these seconds after the task came, so that its time tells less about
# the data; 0: as soon as it can.
pad-seconds = {float(policy.pad_seconds)}

# Sums of one model and purpose (training, evaluation) with this client in them, and sums of queries, which count
# together in all runs: how many there may be, and whether they, and the others' in the transcript, may together tell
# the sum over fewer than min-cohort clients.
max-releases = {policy.max_releases}
max-queries = {policy.max_queries}
allow-differencing = {_bool(policy.allow_differencing)}

# Boosted trees in secure mode: the largest depth, and the fewest rows of all clients together in each node of a tree,
# which a run guarantees by its min-child-weight. They bind what a run sets, and a server that follows the protocol.
max-tree-depth = {policy.max_tree_depth}
min-rows-in-node = {policy.min_rows_in_node}

# Two models that lie apart by less than this fraction of a step of training count as one model there: the difference of
# their sums would tell almost as much. 0: only models that are the same; less than 1, or no round could lose a client.
near-models = {float(policy.near_models)}

# Which model a run may begin with. A model that somebody crafts reads single records out of sums. "app": the one that
# the app's own ServerApp begins with, which this client makes itself to compare; a SHA-256: a model that its owner
# names; "any": whatever the server sends. One that was trained or tested here in an earlier run is always accepted.
first-models = {json.dumps(list(policy.first_models))}
"""


def _bounds(policy: Policy) -> str:
    return f"""\
# The largest model in bytes and in tensors, and the longest local work in seconds.
max-model-bytes = {policy.max_model_bytes}
max-tensors = {policy.max_tensors}
max-seconds = {float(policy.max_seconds)}

# How many exchanges this client takes part in, of one run and in 24 hours.
max-exchanges-per-run = {policy.max_exchanges_per_run}
max-exchanges-per-day = {policy.max_exchanges_per_day}
"""


def _hours(rules: EligibilityRules) -> str:
    hours = ", ".join(f'"{hours}"' for hours in rules.train_hours)
    return f"""\
# When this machine may train, by its local time; ["22:00-06:00"] spans midnight, [] is the whole day.
# A client that may not train stays connected and is not asked.
train-hours = [{hours}]

# Whether it trains only while it is plugged in, and only while it is idle: other processes then use
# at most idle-load of all cores together.
on-power-only = {_bool(rules.on_power_only)}
idle-only = {_bool(rules.idle_only)}
idle-load = {float(rules.idle_load)}
"""


def _config(policy: Policy) -> str:
    rules = "".join(f"allow-config.{_key(key)} = {_rule(rule)}\n" for key, rule in policy.allow_config.items())
    return f"""\
# What a run may set otherwise than the installed app's pyproject.toml does, a line for each key: true for any value,
# [low, high] for a number, a list of texts for a text. Settings of [tool.fedcore] have the prefix "fedcore.", as in
# allow-config.fedcore.w-max = [1, 100000]; allow-config."*" = true allows all.
{rules}"""


def _key(key: str) -> str:
    """A dotted key of TOML; what is not bare is quoted."""
    return ".".join(part if _BARE.fullmatch(part) else json.dumps(part) for part in key.split("."))


def _rule(rule: ConfigRule) -> str:
    return json.dumps(rule if rule is True else list(rule), ensure_ascii=False)


def _bool(value: bool) -> str:
    return "true" if value else "false"
