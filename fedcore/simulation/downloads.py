"""How the models of a simulated run get to its clients: whole, or as differences to what they have.

As on a server (`server_app/runs/files/downloads.py`), with models in memory; what goes over the line is reckoned.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fedcore.run.exchange import ExchangeRequest
from fedcore.simulation.models import model_ref
from fedcore.state import MemorySink, ModelState, can_differ, difference_bytes, rounded


@dataclass(slots=True)
class Downloads:
    """bits: 32 for whole models, 16 for differences."""

    bits: int
    _asked: str = field(default="", init=False)
    """SHA-256 of the strategy's model of the last request."""
    _sent: ModelState | None = field(default=None, init=False)
    _has_base: frozenset[int] = field(default=frozenset(), init=False)
    """Who was asked with the model before; of one that was never a difference, nobody."""
    _has_it: frozenset[int] = field(default=frozenset(), init=False)

    def of(self, request: ExchangeRequest) -> ExchangeRequest:
        """The request with the model that clients get, and the strategy's own as its base; the same for the same."""
        model = model_ref(request.model)
        if self.bits == 32 or request.model is None or model is None:
            return request
        if model.sha256 == self._asked:
            self._has_it |= frozenset(request.nodes)
            return self._with(request)
        if self._sent is not None and can_differ(self._sent, request.model):
            self._sent, self._has_base = rounded(self._sent, request.model), self._has_it
        else:
            self._sent, self._has_base = _copy(request.model), frozenset()
        self._asked, self._has_it = model.sha256, frozenset(request.nodes)
        return self._with(request)

    def bytes_to(self, client: int, model: ModelState | None) -> int:
        """Bytes of a model on its way to a client, as if each exchange sent it."""
        if model is None:
            return 0
        return difference_bytes(model.layout) if client in self._has_base else model.layout.nbytes

    def _with(self, request: ExchangeRequest) -> ExchangeRequest:
        return replace(request, model=self._sent, base=request.model)


def _copy(model: ModelState) -> ModelState:
    """A strategy may change its arrays in place."""
    sink = MemorySink(model.layout)
    model.write_to(sink)
    return sink.state()
