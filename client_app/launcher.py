"""torchrun as a process that ends with the agent that started it.

Started by `client_app.elastic` as `python -m client_app.launcher --channel FD ...`; what follows are torchrun's own
arguments. Nothing is said over the socket: that it closes is the message. The ranks end when this process does.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading


def main() -> None:
    """Run torchrun until it ends or the agent does."""
    channel = socket.socket(fileno=int(sys.argv[2]))
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
    from torch.distributed.run import main as torchrun

    torchrun(sys.argv[3:])


def _end_with(channel: socket.socket) -> None:
    while channel.recv(1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
