"""What the one fork server of a test process has imported when it forks the first rank or worker.

It serves the ranks of `tests.support.ranks`, those of a client's group, the workers of comparisons and the commands of
`tests.support.commands` and of pages; imports take each process seconds, and a fork takes none.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence

from fedcore.compare.workers.processes import PRELOADED

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "numpy", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "torch.utils.data",
        "client_app.ranks.rank", "client_app.startup", "client_app.operator.run", "server_app.http.serving",
        "fedcore.flower.clientside", "fedcore.system.process_group", "flwr.clientapp", "fedcore.compare.console",
        "fedcore.simulation.command", "fedcore.simulation.run", "matplotlib.pyplot", "pandas",
        *PRELOADED,
    ]
)  # fmt: skip


def become(words: Sequence[str], folder: str, environment: Mapping[str, str], files: Sequence[int]) -> None:
    """In a process that was forked: be the command `fedcore` with these words.

    files: open descriptors for its input and its two outputs, which are closed.
    """
    for descriptor, file in enumerate(files):
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process lives; multiprocessing took it away
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["fedcore", *words]
    from fedcore.cli import main

    main()
