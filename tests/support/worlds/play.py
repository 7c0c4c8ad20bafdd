"""Playing a list of asks in a world, and comparing what the adversary gets in two of them."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from client_app.exchange.eligibility import Eligibility, Reading
from client_app.exchange.first_model import NoFirstModels
from client_app.ranks.messages import LocalAnswer
from client_app.records.result_cache import ResultCache
from fedcore.codec import Encoding, PrivateEncoding
from fedcore.codec.scaling.statistics import read_rungs
from fedcore.federation import ClientKit
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.federation.admission.first_model import AppModel
from fedcore.federation.eligibility import EligibilityRules
from fedcore.run.exchange import encoding_of
from fedcore.run.settings import JobSettings
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.secagg.crypto.keys import Secret
from fedcore.state import Sketcher
from fedcore.wire.tasks import Task
from support.stories import Drbg
from support.worlds.asks import Ask
from support.worlds.clients import at_work
from support.worlds.data import Data, Work, make_model
from support.worlds.memory_transport import MemoryTransport, Request
from support.worlds.server import Adversary, Release

SECONDS = 500.0
AGREED = AppAgreement(run_config={"lr": 1.0}, settings=JobSettings())
"""What the app says that every owner installed."""
_WITH_NOISE = frozenset({"peaks", "metrics", "digits"})
"""Sections of a sum that tell no more than their rungs, and metrics to a millionth: the rest of their bits is noise."""
_NEAR = 0.06
"""Of a step: far below what stock clients take for the same model, which each measure for themselves."""


@dataclass(slots=True)
class View:
    """What the adversary gets out of a list of asks: each client's requests, in order, and a sum for each ask.

    logs: what the clients told their owners, which it does not see.
    """

    requests: dict[int, list[Request]]
    releases: list[Release | None]
    logs: dict[int, str] = field(default_factory=dict)


class Randomness:
    """A client's own, the same in every world: what an exchange draws does not depend on how much the last one drew."""

    def __init__(self, client: int) -> None:
        self._client = client
        self._exchange = 0
        self._source = Drbg(f"client {client}")

    def next_exchange(self) -> None:
        self._exchange += 1
        self._source = Drbg(f"client {self._client}, exchange {self._exchange}")

    def __call__(self, size: int) -> bytes:
        return self._source(size)


class Unhurried(ResultCache):
    """Waits for the keys even if the result is cached, so that the client draws in the same order."""

    begun: asyncio.Event

    async def get_or_run(
        self, task: Task, run: Callable[[], Awaitable[LocalAnswer]], *, keep_failure: bool
    ) -> LocalAnswer:
        await self.begun.wait()
        return await ResultCache.get_or_run(self, task, run, keep_failure=keep_failure)


def same_encapsulations() -> AbstractContextManager[object]:
    """ML-KEM draws its own randomness; while this lasts, who encapsulates again for the same peer draws the same."""
    known: dict[tuple[bytes, bytes], tuple[bytes, Secret]] = {}
    really = KeyPair.encapsulate

    def encapsulate(pair: KeyPair, peer_public: bytes) -> tuple[bytes, Secret]:
        key = (pair.root.reveal(), peer_public)
        if key not in known:
            known[key] = really(pair, peer_public)
        return known[key]

    return mock.patch.object(KeyPair, "encapsulate", encapsulate)


async def compare(
    asks: Sequence[Ask], data: Mapping[int, Data], kits: Mapping[int, ClientKit], folder: Path
) -> tuple[View, list[str]]:
    """What the adversary gets in this world, and what it can tell it by from the one with two clients exchanged.

    The sums of fewer clients than any of them allows are among that.
    """
    # What a crash would leave on the disk is the subject of other tests.
    with same_encapsulations(), mock.patch("os.fsync"):
        here = await play(asks, data, kits, folder)
        there = await play(asks, exchanged(data), kits, folder)
    least = min(kit.policy.min_cohort for kit in kits.values())
    chance = any(one.recovers for one in data.values())
    return here, [*differences(here, there), *isolated(here.releases, least), *taken_out(here.releases, chance=chance)]


class OwnModel(NoFirstModels):
    """What the clients derive: the agreed app begins with `make_model()`, in every run."""

    async def of(self, task: Task, app_sha256: str, members: Sequence[int]) -> AppModel:
        return AppModel(sha256=make_model().sha256())


async def play(asks: Sequence[Ask], data: Mapping[int, Data], kits: Mapping[int, ClientKit], folder: Path) -> View:
    """Run whole agents of the clients that have data against the adversary, in a new folder within `folder`."""
    own = Path(tempfile.mkdtemp(dir=folder))
    adversary = Adversary(kits, own)
    transports = {number: MemoryTransport(number, adversary) for number in kits}
    works = {number: Work(data[number]) for number in kits}

    def results(number: int, folder: Path) -> Unhurried:
        cache = Unhurried(folder)
        cache.begun = works[number].begun
        return cache

    def parts(number: int) -> dict[str, Any]:
        work, randomness, transport = works[number], Randomness(number), transports[number]

        def on_task() -> None:
            randomness.next_exchange()
            work.begun.clear()

        transport.on_task, transport.on_watch = on_task, work.begun.set
        return {
            "transport": transport,
            "work": work,
            "first_models": OwnModel(),
            "randomness": randomness,
            "sketcher": Sketcher(f"client {number}".encode()),
            "eligibility": Eligibility(rules=EligibilityRules(), read=lambda: Reading(minute=0)),
        }

    async with asyncio.timeout(SECONDS), at_work(kits, own, AGREED, parts, results=results) as crew:
        releases = await crew.until(_lead(adversary, asks))
    return View(
        {number: transport.seen for number, transport in transports.items()},
        releases,
        {number: log.getvalue() for number, log in crew.logs.items()},
    )


async def _lead(adversary: Adversary, asks: Sequence[Ask]) -> list[Release | None]:
    """One ask after the other; before a buffered sum each client trains from the model that is meant for it."""
    releases = []
    for ask in asks:
        if ask.starts:
            await adversary.hand_out(ask, ask.starts)
        releases += await adversary.lead([ask])
    return releases


def exchanged(data: Mapping[int, Data], one: int = 1, other: int = 2) -> dict[int, Data]:
    """The other world: two honest clients have each other's data."""
    return {**data, one: data[other], other: data[one]}


def differences(one: View, other: View, swapped: Sequence[int] = (1, 2)) -> Iterator[str]:
    """What the adversary can tell two worlds by, in which the `swapped` clients have each other's data.

    The model comes while the keys are exchanged, before any work, so chance decides which of them is first.
    """
    for client in one.requests:
        both = [models_first(view.requests[client]) for view in (one, other)]
        for place, (here, there) in enumerate(itertools.zip_longest(*both)):
            if here != there:
                yield f"client {client}, request {place}: {here} / {there}"
                break
    for number, (here, there) in enumerate(zip(one.releases, other.releases, strict=True), start=1):
        if (here is None) != (there is None):
            yield f"exchange {number} gives a sum in one world only"
        elif here is not None and there is not None:
            yield from (f"exchange {number}: {text}" for text in _of_sums(here, there, swapped))


def models_first(requests: Sequence[Request]) -> list[Request]:
    """The same requests, that for the model of an exchange before all others of the exchange."""
    ordered: list[Request] = []
    for request in requests:
        exchange, _, what = request.target.partition("?")[0].rpartition("/")
        same = (place for place, one in enumerate(ordered) if one.target.startswith(f"{exchange}/"))
        ordered.insert(next(same, len(ordered)) if what == "model" else len(ordered), request)
    return ordered


def _of_sums(here: Release, there: Release, swapped: Sequence[int]) -> Iterator[str]:
    if here.survivors != there.survivors:
        yield f"the survivors are {here.survivors} / {there.survivors}"
    elif len(set(swapped) & set(here.survivors)) in (0, len(swapped)) and not _agree(here, there):
        yield f"the sums over {here.survivors} differ: {here.decoded or here.why} / {there.decoded or there.why}"


def _agree(here: Release, there: Release) -> bool:
    """Whether two sums are the same but for the rounding of the fields, which the clients' own randomness decides."""
    encoding = encoding_of(here.task)
    if isinstance(encoding, PrivateEncoding):
        return (here.decoded is None) == (there.decoded is None)
    assert isinstance(encoding, Encoding)
    if here.failures > encoding.failures or here.why != there.why:  # a closed sum tells that word and no other
        return here.failures == there.failures and here.why == there.why
    sections, last = encoding.sections, "keys"
    if any(here.words[sections["large"]]):  # else the sum tells these and no other
        last = "clipped"
    open_ones = list(sections)[list(sections).index("failed") : list(sections).index(last)]
    exact = [name for name in open_ones if name not in _WITH_NOISE]
    if not all(np.array_equal(here.words[sections[name]], there.words[sections[name]]) for name in exact):
        return False
    rungs = [read_rungs(encoding, one.words[sections["peaks"]].tolist()) for one in (here, there)]
    if rungs[0] != rungs[1] or not _same_metrics(here, there):
        return False
    if here.decoded is None or here.decoded.state is None or there.decoded is None or there.decoded.state is None:
        return True
    levels = len(here.survivors) / max(here.decoded.examples, 1) * encoding.settings.w_max
    step = levels * max(map(encoding.step, range(len(encoding.scales))), default=0.0)
    return all(
        np.allclose(value, there.decoded.state[name], rtol=1e-6, atol=step)
        for name, value in here.decoded.state.items()
    )


def _same_metrics(here: Release, there: Release) -> bool:
    if here.decoded is None or there.decoded is None:
        return here.decoded is there.decoded
    one, other = here.decoded.metrics, there.decoded.metrics
    return one.keys() == other.keys() and all(np.allclose(one[name], other[name], rtol=1e-6, atol=0) for name in one)


def taken_out(releases: Sequence[Release | None], *, chance: bool) -> Iterator[str]:
    """Sums of the same clients from one model, to which not as many contributed: they differ by who failed in one.

    Of those with the same names of metrics, and, where a client fails by chance, among the attempts at one exchange:
    for these its answer is kept. What other sums tell, docs/threat-model.md says.
    """
    failures: dict[tuple[str, bool, tuple[int, ...], object, tuple[str, int]], set[int]] = {}
    for release in releases:
        if release is not None and release.task.subject_model and not release.noised:  # one query is not another
            task = release.task
            first = (task.run, task.exchange - task.attempt + 1) if chance else ("", 0)
            same = task.model.sha256, task.trains, release.survivors, encoding_of(task).metrics, first
            failures.setdefault(same, set()).add(release.failures)
    for (model, _, survivors, *_), counts in failures.items():
        if len(counts) > 1:
            yield f"model {model[:8]}: of {survivors} {sorted(counts)} failed"


def _nearly_same(one: Release, other: Release, given: Sequence[Release]) -> bool:
    """Whether the models of two runs lie apart by a small part of the step that led to one of them, or onward."""
    if not one.substance or not other.substance or one.task.run == other.task.run:
        return False
    if one.task.message_type != other.task.message_type or one.elements.shape != other.elements.shape:
        return False
    steps = [_distance(release, near) for release in (one, other) for near in _next_to(release, given)]
    return _distance(one, other) <= _NEAR * min(steps, default=0.0)


def _next_to(release: Release, given: Sequence[Release]) -> Iterator[Release]:
    """The sums of the same run and kind just before and after."""
    alike = [
        one for one in given if (one.task.run, one.task.message_type) == (release.task.run, release.task.message_type)
    ]
    place = alike.index(release)
    for near in (*alike[max(0, place - 1) : place], *alike[place + 1 : place + 2]):
        if near.elements.shape == release.elements.shape:
            yield near


def _distance(one: Release, other: Release) -> float:
    return float(np.linalg.norm(one.elements - other.elements))


def isolated(releases: Sequence[Release | None], least: int) -> Iterator[str]:
    """Sets of fewer than `least` clients whose sum follows from those of one model and kind of work, or of queries.

    Nearly the same model of another run is the same one.
    """
    alike: dict[tuple[str, bool], set[tuple[int, ...]]] = {}
    given = [release for release in releases if release is not None]
    for number, release in enumerate(given):
        first = next((one for one in given[:number] if _nearly_same(one, release, given)), release)
        alike.setdefault((first.substance, first.task.trains), set()).add(release.survivors)
    for (model, _), sets in alike.items():
        clients = sorted(set(itertools.chain.from_iterable(sets)))
        rows = np.array([[client in chosen for client in clients] for chosen in sets], float)
        for size in range(1, least):
            for few in itertools.combinations(range(len(clients)), size):
                target = np.isin(np.arange(len(clients)), few).astype(float)
                found = np.linalg.lstsq(rows.T, target, rcond=None)[0]
                if np.allclose(rows.T @ found, target):
                    yield f"model {model[:8]}: the sums over {sorted(sets)} give that of {[clients[i] for i in few]}"
