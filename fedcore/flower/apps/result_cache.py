"""Cache of the results of simulated clients in one exchange, so that a retry does not run their apps again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.state import FileSink


class AppResults:
    """The results by client; a context manager. New models lie in a temporary folder: together they may be many."""

    def __init__(self) -> None:
        self._results: dict[int, LocalResult] = {}
        self._stack = ExitStack()
        self._folder: Path | None = None

    def get_or_run(
        self, clients: Sequence[int], run: Callable[[Sequence[int]], Iterable[tuple[int, LocalResult]]]
    ) -> Iterator[tuple[int, LocalResult]]:
        """What the clients' apps gave, in any order; `run` runs those that have not run yet. Raises what it raises."""
        others = [client for client in clients if client not in self._results]
        yield from [(client, self._results[client]) for client in clients if client in self._results]
        for client, result in run(others) if others else ():
            self._results[client] = self._keep(client, result)
            yield client, self._results[client]

    def has(self, client: int) -> bool:
        """Whether the client's app has run."""
        return client in self._results

    def drop(self, client: int) -> None:
        """Forget what the client's app gave: it is to run again."""
        self._results.pop(client, None)
        if self._folder is not None:
            (self._folder / f"{client}.safetensors").unlink(missing_ok=True)

    def close(self) -> None:
        """Forget everything."""
        self._results.clear()
        self._stack.close()
        self._folder = None

    def _keep(self, client: int, result: LocalResult) -> LocalResult:
        if result.layout is None or result.write is None:
            return result
        if self._folder is None:
            self._folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="fedcore-simulate-")))
        path = self._folder / f"{client}.safetensors"
        if result.file is not None:
            shutil.move(result.file, path)
        else:
            with FileSink(path, result.layout, durable=False) as sink:
                result.write(sink)
        return LocalResult.in_file(result.examples, result.metrics, path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
