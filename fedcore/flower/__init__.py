"""The one place that imports flwr: loading Flower apps, and running them over our own exchanges.

`bundle` and `app` only read files and never import flwr or the user's code, so the agent and the server may use them;
`serverside` and `clientside` run the user's code and belong in a process of their own.
"""

import os

# Must be set before flwr is imported anywhere: fedcore never calls home, and neither does what it runs.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
