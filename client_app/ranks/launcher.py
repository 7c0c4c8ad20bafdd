"""torchrun as a process that ends with the agent that started it.

Started by `client_app.ranks.elastic` as `python -m client_app.ranks.launcher FD FOLDER ...`; what follows are
torchrun's own arguments. Nothing is said over the socket FD: that it closes is the message. The ranks end when this
process does, and no model stays in the agent's private FOLDER.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading


def main() -> None:
    """Run torchrun until it ends or the agent does."""
    descriptor, folder, *arguments = sys.argv[1:]
    connection = socket.socket(fileno=int(descriptor))
    threading.Thread(target=_end_with, args=(connection, folder), daemon=True).start()
    from torch.distributed.run import main as torchrun

    torchrun(arguments)


def _end_with(connection: socket.socket, folder: str) -> None:
    while connection.recv(1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
