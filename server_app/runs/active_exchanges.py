"""The exchanges that clients take part in, and that people follow."""

from __future__ import annotations

from fedcore.wire.tasks import Task
from server_app.exchanges.exchange import Exchange


class ActiveExchanges:
    """Those that are open, and those that ended last: all that the ServerApp's last request has led to."""

    def __init__(self) -> None:
        self._exchanges: list[Exchange] = []

    def add(self, exchange: Exchange) -> None:
        """One more is led. Of those that have ended, only those of the same request stay.

        A restored exchange replaces the object that was suspended when the ServerApp died, which nobody ends.
        """
        run, number, step = exchange.task.run, exchange.task.exchange, exchange.context.step
        self._exchanges = [
            one
            for one in self._exchanges
            if (one.task.run, one.task.exchange) != (run, number)
            and (not one.stages.over or (one.task.run, one.context.step) == (run, step))
        ]
        self._exchanges.append(exchange)

    def clear(self) -> None:
        """Nothing is led any more."""
        self._exchanges = []

    @property
    def newest(self) -> Exchange | None:
        """The one that began last."""
        return self._exchanges[-1] if self._exchanges else None

    def of(self, run: str) -> list[Exchange]:
        """Those of a run, the newest last."""
        return [exchange for exchange in self._exchanges if exchange.task.run == run]

    def open_of(self, run: str) -> list[Exchange]:
        """Those of a run that have not ended."""
        return [exchange for exchange in self.of(run) if not exchange.stages.over]

    def find(self, run: str, number: int) -> Exchange | None:
        """One of them."""
        return next((one for one in reversed(self.of(run)) if one.task.exchange == number), None)

    def next_for(self, client: int, run: str, after: int) -> tuple[Exchange, Task] | None:
        """The newest that asks this client, which has taken exchange `after` of `run` last."""
        for exchange in reversed(self._exchanges):
            if exchange.task.run == run and exchange.task.exchange <= after:
                continue
            if (task := exchange.task_for(client)) is not None:
                return exchange, task
        return None

    def begun_by(self, client: int) -> Exchange | None:
        """One that waits for this client in a stage after its first, which the client has answered."""
        return next(
            (one for one in reversed(self._exchanges) if not one.stages.is_first and client in one.clients.missing),
            None,
        )
