"""Whether the ranks hold the same where they hold copies, before rank 0's are handed over as the client's model.

Engines keep copies alike by giving each the same gradient. A loop that trains parts of the model behind an engine's
back (`engine.module.generator`, and nothing is prepared) gives each rank the gradient of its own examples: the copies
drift apart, and rank 0's would count alone. So digests of all copies are compared, and the tensors themselves only
where these differ.

Copies that got the same gradients are the same bits on machines of one kind. Machines of several kinds may round a step
differently, and so may two GPUs where each computes the gradient of its copy for itself (layers that tensor parallelism
leaves whole). There a difference up to `ROUNDING` of the tensor's largest element is not one.
"""

from __future__ import annotations

import functools
import hashlib
import platform
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fedcore.errors import AppError
from fedcore.training.dtensors import is_dtensor, local
from fedcore.training.engines.transfer import Entry, numpy_view, part_of
from fedcore.training.engines.world import World

ROUNDING: Final = 1e-4
_MOST_NAMED: Final = 3
_NOTHING: Final = -1
"""Stands for the digest of a tensor that a rank does not have."""


@dataclass(frozen=True, slots=True)
class _Unlike:
    """The first rank that holds some elements of a tensor, and another whose copy has a different digest."""

    entry: Entry
    first: int
    other: int


def check_copies(entries: Sequence[Entry], world: World, *, rounds: bool = False) -> None:
    """Raise AppError, on every rank, where copies of the same elements differ.

    Every rank has to call it, with the same entries.

    Args:
        rounds: rounding may tell them apart.
    """
    own = [entry for entry in entries if _may_be_copied(entry)]
    if world.size == 1 or not own:
        return
    digests = torch.zeros((world.size, len(own) + 1), dtype=torch.int64)
    digests[world.rank] = torch.tensor([_machine(world), *(_digest(entry) for entry in own)])
    table: list[list[int]] = world.sum(digests.to(world.device)).tolist()
    allowed = ROUNDING if rounds or len({row[0] for row in table}) > 1 else 0.0
    unlike = [line for number, entry in enumerate(own, 1) for line in _unlike(entry, [row[number] for row in table])]
    far = [(pair, by) for pair in unlike if not (by := _difference(pair, world)) <= allowed]
    if far:
        raise AppError(_explained(far))


def _may_be_copied(entry: Entry) -> bool:
    """Whether two ranks may hold the same elements; every rank says the same of an entry."""
    if not is_dtensor(entry.tensor):
        return True
    sizes = zip(entry.tensor.device_mesh.shape, entry.tensor.placements, strict=True)
    return any(size > 1 and not placement.is_shard() for size, placement in sizes)


def _digest(entry: Entry) -> int:
    """Of what this rank holds; not negative, or `_NOTHING`."""
    if entry.tensor is None:
        return _NOTHING
    values = numpy_view(local(entry.tensor), entry.spec)
    return int.from_bytes(hashlib.sha256(values.view(np.uint8).data).digest()[:7])


def _unlike(entry: Entry, digests: Sequence[int]) -> Iterator[_Unlike]:
    """Each rank whose copy is unlike that of the first rank with the same elements."""
    holders: dict[object, list[int]] = defaultdict(list)
    for rank, digest in enumerate(digests):
        if digest != _NOTHING:
            part = part_of(entry.tensor, rank) if is_dtensor(entry.tensor) else ()
            holders[tuple((cut.start, cut.stop) for cut in part)].append(rank)
    for first, *others in holders.values():
        yield from (_Unlike(entry, first, other) for other in others if digests[other] != digests[first])


def _difference(pair: _Unlike, world: World) -> float:
    """By how much two copies differ, relative to the largest element, the same on every rank; nan for one with nan."""
    difference = torch.zeros((), dtype=torch.float64, device=world.device)
    if world.rank in (pair.first, pair.other) and pair.entry.tensor is not None:
        own = local(pair.entry.tensor).detach().contiguous().to("cpu" if world.shared else world.device)
        if world.rank == pair.other:
            dist.send(own, dst=pair.first)
        else:
            theirs = torch.empty_like(own)
            dist.recv(theirs, src=pair.other)
            difference += _relative(own, theirs).to(world.device)
    return float(world.sum(difference))


def _relative(one: Tensor, two: Tensor) -> Tensor:
    one, two = one.double(), two.double()
    apart = torch.where((one == two) | (one.isnan() & two.isnan()), 0.0, (one - two).abs()).max()
    return torch.where(apart == 0, 0.0, apart / torch.maximum(one.abs().max(), two.abs().max()))


def _explained(far: Sequence[tuple[_Unlike, float]]) -> str:
    names = list(dict.fromkeys(pair.entry.spec.name for pair, _ in far))
    lines = [
        f"{pair.entry.spec.name} by {by:.2g} of its size (ranks {pair.first} and {pair.other})" for pair, by in far
    ]
    more = f", and {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""
    return (
        f"the ranks' copies of {len(names)} tensor{'s' if len(names) > 1 else ''} differ after training, of which only "
        f"one would count: {', '.join(lines[:_MOST_NAMED])}{more}. Train through engine.step, engine.backward or "
        "engine.model, with engine.batches; a loop of your own over parts of the model, or with optimizers of its own, "
        "begins with engine.prepare(model, optimizer), or calls engine.average_gradients() before each step of an "
        "optimizer. What all ranks need alike is drawn from one seed"
    )


@functools.cache
def _processor() -> str:
    """What this machine's processor is called."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line for line in lines if line.startswith("model name")), platform.processor())


def _machine(world: World) -> int:
    """A number for what may round differently: the device, the version of torch, the number of threads."""
    if world.device.type == "cuda":
        device = torch.cuda.get_device_name(world.device)
    else:
        device = f"{_processor()} {torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()}"
    return int.from_bytes(hashlib.sha256(f"{device} {torch.__version__}".encode()).digest()[:7])
