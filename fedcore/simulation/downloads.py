"""The models that clients of a simulated run get (`fedcore.run.engine.downloads`), in memory, with reckoned bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fedcore.run.engine.attempts import run_now
from fedcore.run.engine.downloads import ModelChain
from fedcore.run.exchange import ExchangeRequest
from fedcore.simulation.models import model_ref
from fedcore.state import MemorySink, ModelState, can_differ, difference_bytes, rounded


@dataclass(frozen=True, slots=True)
class _SentModel:
    state: ModelState
    is_difference: bool


@dataclass(slots=True)
class SimulatedDownloads:
    """The models of one simulated run.

    bits
        32 for whole models, 16 for differences.
    """

    bits: int
    _chain: ModelChain[_SentModel] = field(default_factory=ModelChain, init=False)
    _have_base: frozenset[int] = field(default=frozenset(), init=False)
    """Who got the model before; of one that was never a difference, nobody."""
    _have_it: frozenset[int] = field(default=frozenset(), init=False)

    def of(self, request: ExchangeRequest) -> ExchangeRequest:
        """The request with the model that clients get, and the strategy's own as its base; the same for the same."""
        model, reference = request.model, model_ref(request.model)
        if self.bits == 32 or model is None or reference is None:
            return request

        async def make(last: _SentModel | None) -> _SentModel:
            if last is not None and can_differ(last.state, model):
                return _SentModel(rounded(last.state, model), is_difference=True)
            return _SentModel(_copy(model), is_difference=False)

        before, clients = self._chain.last, frozenset(request.nodes)
        sent = run_now(self._chain.send(reference.sha256, make))
        if sent is before:
            self._have_it |= clients
        else:
            self._have_base, self._have_it = (self._have_it if sent.is_difference else frozenset()), clients
        return replace(request, model=sent.state, base=model)

    def bytes_to(self, client: int, model: ModelState | None) -> int:
        """Bytes of a model on its way to a client, as if each exchange sent it."""
        if model is None:
            return 0
        return difference_bytes(model.layout) if client in self._have_base else model.layout.nbytes


def _copy(model: ModelState) -> ModelState:
    """A strategy may change its arrays in place."""
    sink = MemorySink(model.layout)
    model.write_to(sink)
    return sink.state()
