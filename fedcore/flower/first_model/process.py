"""The process in which a ServerApp begins, for the sake of its first model alone.

Started by `fedcore.flower.first_model.derive` as `python -m fedcore.flower.first_model.process FD`; FD is a socket to
the process that asks. It prepares itself, and runs the app, by the functions that the server's process of a run uses.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from fedcore.errors import FedcoreError
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.flower.first_model.messages import (
    QUERIES_ALONE,
    TO_PROCESS,
    Derivation,
    FirstModel,
    FirstModelStart,
    NotDerived,
)
from fedcore.flower.first_model.recorder import FirstModelRecorder, no_central_tests
from fedcore.flower.grid.known_statistics import statistics_of
from fedcore.flower.serverside import begin_server_process, load_server_app, run_started
from fedcore.state import ModelState
from fedcore.system.json_lines import BlockingConnection

NO_ASKER = 70
FILES = "files"
"""Where the app runs, below the process's folder."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Take over the socket whose descriptor is the only argument."""
    connection = socket.socket(fileno=int(arguments[0]))
    asking = BlockingConnection(connection, TO_PROCESS, on_close=lambda: os._exit(NO_ASKER))

    def end(answer: Derivation) -> NoReturn:
        asking.send(answer)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # at once, whatever the user's code does with an exception

    start = asking.receive()
    try:
        _begin(start, end)
    except FedcoreError as error:
        end(NotDerived(reason=str(error)))
    except BaseException as error:  # the user's own code: anything can come out of it
        end(NotDerived(reason=f"the ServerApp raised {type(error).__name__}: {error}"))
    end(NotDerived(reason="the ServerApp came to its end without a model"))


def _begin(start: FirstModelStart, end: Callable[[Derivation], NoReturn]) -> None:
    folder = Path(start.app)
    if AppBundle.from_copy(folder).sha256 != start.app_sha256:
        end(NotDerived(reason="the installed copy of the app was changed"))
    Path(FILES).mkdir()
    os.chdir(FILES)
    begin_server_process(start.run)

    def answer(model: ModelState) -> NoReturn:
        if start.file:
            with contextlib.suppress(FedcoreError, OSError):  # then the client downloads it
                model.save(Path(start.file))
        end(FirstModel(sha256=model.sha256()))

    backend = FirstModelRecorder(start.nodes, answer)

    def look() -> None:
        if getattr(load_server_app(FlowerApp.load(folder)), QUERIES_ALONE, False):
            end(NotDerived(reason="the ServerApp sends models in queries alone, which no client traces", needless=True))

    with statistics_of(start.statistics), no_central_tests():
        run_started(start, backend=backend, most_nodes=lambda: start.members, on_loaded=look)


if __name__ == "__main__":
    main(sys.argv[1:])
