"""The one place that imports flwr: loading Flower apps, and running them over our own exchanges.

Users write ordinary Flower apps. A strategy talks to a `Grid`; `grid.ExchangeGrid` is one whose
`send_and_receive` is an exchange. In secure mode no single update exists to be handed over, so the strategy gets one
reply with the weighted mean, and the mean of one reply is that reply: every strategy that uses nothing but the mean
works unchanged, and code that may want more is refused before the first round (`aggregation_guard`),
unless it is declared (`mean_only`, `sum_only`, `group_means`).

On the client `clientside` runs the ClientApp for a task. `engine_app` makes ClientApps out of functions that take an
engine; these get their model tensor by tensor (`tensor_app`), past Flower's records.

`app` only reads files and never imports flwr or the user's code, so the agent and the server may use it. All else runs
the user's code, and belongs in a process of its own.
"""

import os

# Must be set before flwr is imported anywhere: fedcore never calls home, and neither does what it runs.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

from fedcore.flower.grid.declarations import group_means, mean_only, sum_only

__all__ = ["group_means", "mean_only", "sum_only"]
