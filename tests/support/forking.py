"""What the one fork server of a test process has imported when it forks the first rank or worker.

It serves the ranks of `tests.support.ranks`, the workers of comparisons and the commands of `tests.support.commands`;
imports take each process seconds, and a fork takes none.
"""

from __future__ import annotations

import multiprocessing

from fedcore.compare.workers import PRELOADED

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "numpy", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "torch.utils.data",
        *PRELOADED, "fedcore.compare.command", "server_app.main", "client_app.main", "client_app.runs",
    ]
)  # fmt: skip
