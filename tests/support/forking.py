"""What the one fork server of a test process has imported when it forks the first rank or worker.

It serves the ranks of `tests.support.ranks`, those of a client's group, the workers of comparisons and the commands of
`tests.support.commands` and of pages; imports take each process seconds, and a fork takes none.
"""

from __future__ import annotations

import multiprocessing

from fedcore.comparison.workers.processes import PRELOADED

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "tests.support.fork_server",
        "numpy", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "torch.utils.data",
        "client_app.ranks.rank", "client_app.startup", "client_app.operator.run_submission", "server_app.serving",
        "fedcore.flower.clientside", "fedcore.system.process_group", "flwr.clientapp", "fedcore.cli.compare_console",
        "fedcore.cli.simulate", "fedcore.simulation.run", "matplotlib.pyplot", "pandas",
        *PRELOADED,
    ]
)  # fmt: skip
