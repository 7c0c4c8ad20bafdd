"""Model state in and out of the ranks, one tensor at a time; the optimizer's too, as named tensors.

No rank holds more of the whole model than one tensor and its own part. If all ranks can read the file, each
copies its part out of the memory map; otherwise rank 0 sends each rank its part. Out of the ranks, the parts go to
rank 0, which writes each of them to its place in the file.

Parameters in bfloat16 go in and out as float32, which has all of their values: no record of Flower has bfloat16, and
the mean of clients is not rounded to eight bits.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from fedcore.errors import ConfigurationError, EncodingError, UsageError
from fedcore.state import Layout, ModelState, StateSink, TensorSpec
from fedcore.training.dtensors import is_dtensor, local
from fedcore.training.engines.world import World

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip

_STATE = {**_DTYPES, torch.bfloat16: "F32"}
"""What a tensor of each dtype is in a model's state."""

_MOST_BYTES = 1 << 26
"""How much of a mapped file may stay in memory while it is read."""

Region = tuple[slice, ...]
"""The elements of a tensor that one rank holds: a range for each dimension."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a model's state.

    spec: of the whole tensor.
    tensor: what this rank holds of it, None for nothing.
    owner: a rank that holds all of it; of a DTensor every rank holds a part.
    nonnegative: values below zero, which a mean that is rounded or has noise may have, are loaded as zero.
    """

    spec: TensorSpec
    tensor: Tensor | None
    owner: int = 0
    nonnegative: bool = False

    @classmethod
    def of(cls, name: str, tensor: Tensor, *, nonnegative: bool = False) -> Self:
        """For a parameter or buffer of this rank; EncodingError for a dtype that no state can hold."""
        dtype = _STATE.get(tensor.dtype)
        if dtype is None:
            raise EncodingError(
                f"tensor {name!r} is {tensor.dtype}, which a model's state cannot hold; a complex parameter is kept as "
                "its real and imaginary part (torch.view_as_complex of a float parameter [..., 2])",
                check="dtype-not-held",
            )
        return cls(_spec(name, dtype, tuple(tensor.shape)), tensor.detach(), nonnegative=nonnegative)


@functools.lru_cache(maxsize=4096)
def _spec(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    """Kept, since a simulation asks for those of one model once for each client and round."""
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def load_entries(entries: Sequence[Entry], state: ModelState | None, world: World) -> None:
    """Fill the entries from a state that at least rank 0 has; raises EncodingError if it is another model's."""
    everywhere = _agree(entries, state, world)
    read = 0
    for entry in entries:
        tensor = None if state is None else torch_view(state[entry.spec.name], entry.spec)
        if everywhere:
            _fill(entry, tensor)
        elif is_dtensor(entry.tensor):
            _hand_out_parts(entry, entry.tensor, tensor, world)
        else:
            _hand_out(entry, tensor, world)
        read += entry.spec.nbytes
        if state is not None and read > _MOST_BYTES:
            state.release()
            read = 0


def save_entries(entries: Iterable[Entry], sink: StateSink | None, world: World) -> None:
    """Write the whole tensors to rank 0's sink."""
    for entry in entries:
        if is_dtensor(entry.tensor):
            _collect_parts(entry.spec, entry.tensor, sink, world)
            continue
        tensor = entry.tensor if entry.owner == 0 else _to_rank_0(entry, world)
        if sink is not None and tensor is not None:
            sink.write(entry.spec, 0, numpy_view(tensor, entry.spec))


@functools.cache
def _warn_of_views() -> None:
    """Let torch say, unheard, that an array is not to be written: it does so once in a process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        torch.from_numpy(np.frombuffer(b"0", np.uint8))


def array_view(array: NDArray[Any]) -> Tensor:
    """A tensor over the same memory, only to be read."""
    _warn_of_views()
    return torch.from_numpy(array)


def torch_view(array: NDArray[Any], spec: TensorSpec) -> Tensor:
    """The same of a tensor in its storage dtype."""
    tensor = array_view(array)
    return tensor.view(torch.bfloat16) if spec.dtype == "BF16" else tensor


def numpy_view(tensor: Tensor, spec: TensorSpec) -> NDArray[Any]:
    """The elements in the storage dtype, flat and contiguous, in the memory of the host."""
    own = tensor.detach().float() if spec.dtype == "F32" and tensor.dtype == torch.bfloat16 else tensor.detach()
    flat = own.cpu().contiguous().view(-1)
    array: NDArray[Any] = (flat.view(torch.uint16) if spec.dtype == "BF16" else flat).numpy()
    return array


def part_of(tensor: DTensor, rank: int) -> Region:
    """What `rank` holds of a tensor that is sharded in the manner of torch.chunk, mesh dimension by mesh dimension.

    Raises UsageError for any other way.
    """
    from torch.distributed.tensor import Replicate, Shard

    mesh = tensor.device_mesh
    (coordinate,) = (mesh.mesh == rank).nonzero().tolist()
    bounds = [(0, length) for length in tensor.shape]
    for size, index, placement in zip(mesh.shape, coordinate, tensor.placements, strict=True):
        if type(placement) not in (Shard, Replicate):
            raise UsageError(f"a tensor with placement {placement} cannot be put together")
        if isinstance(placement, Shard):
            dimension = placement.dim % tensor.ndim
            start, stop = bounds[dimension]
            chunk = math.ceil((stop - start) / size)
            first = min(start + index * chunk, stop)
            bounds[dimension] = (first, min(first + chunk, stop))
    return tuple(slice(start, stop) for start, stop in bounds)


def _agree(entries: Sequence[Entry], state: ModelState | None, world: World) -> bool:
    """Whether every rank has the state. If one rank has to raise, all do: they would wait for it otherwise."""
    error: Exception | None = None
    if state is not None:
        try:
            Layout(specs=tuple(entry.spec for entry in entries)).check_same(
                state.layout, what="the model that was sent"
            )
        except EncodingError as raised:
            error = raised
    elif world.rank == 0:
        error = UsageError("rank 0 needs the state that is to be loaded")
    if error is not None and world.size == 1:
        raise error
    if world.size == 1:
        return True
    refused, without = world.sum(torch.tensor([error is not None, state is None], device=world.device).float()).tolist()
    if error is not None:
        raise error
    if refused:
        raise EncodingError("another rank refused the state")
    return not without


@torch.no_grad()
def _fill(entry: Entry, tensor: Tensor | None) -> None:
    """Copy this rank's part out of the whole tensor."""
    if is_dtensor(entry.tensor) and tensor is not None:
        _set(entry, tensor[part_of(entry.tensor, dist.get_rank())])
    elif tensor is not None:
        _set(entry, tensor)


@torch.no_grad()
def _set(entry: Entry, values: Tensor) -> None:
    if entry.tensor is None:
        return
    own = local(entry.tensor)
    own.copy_(values)
    if entry.nonnegative:
        own.clamp_(min=0)


def _hand_out(entry: Entry, tensor: Tensor | None, world: World) -> None:
    """Rank 0's tensor to all ranks."""
    sent = _empty(entry.spec.shape, entry.spec, world) if world.rank or tensor is None else tensor.to(world.device)
    dist.broadcast(sent, src=0)
    _set(entry, sent)


def _hand_out_parts(entry: Entry, tensor: DTensor, full: Tensor | None, world: World) -> None:
    """To each rank its part of rank 0's tensor."""
    if world.rank or full is None:
        own = tensor.to_local()
        if own.numel():
            received = _empty(own.shape, entry.spec, world)
            dist.recv(received, src=0)
            _set(entry, received)
        return
    for rank in range(1, world.size):
        part = full[part_of(tensor, rank)]
        if part.numel():
            dist.send(part.contiguous().to(world.device), dst=rank)
    _fill(entry, full)


def _collect_parts(spec: TensorSpec, tensor: DTensor, sink: StateSink | None, world: World) -> None:
    """The parts of a tensor to rank 0; each from the first of the ranks that hold it."""
    holders: dict[tuple[tuple[int, int], ...], int] = {}
    for rank in range(world.size):
        holders.setdefault(tuple((part.start, part.stop) for part in part_of(tensor, rank)), rank)
    # Whole rows lie together in the file, and need not be put together first.
    rows_only = all(not p.is_shard() or p.is_shard(0) or p.is_shard(-tensor.ndim) for p in tensor.placements)
    full = None if rows_only or sink is None else torch.empty(spec.shape, dtype=tensor.dtype)
    for bounds, rank in holders.items():
        shape = tuple(stop - start for start, stop in bounds)
        part = _from_rank(rank, tensor.to_local(), shape, spec, world) if math.prod(shape) else None
        if full is not None and part is not None:
            full[tuple(slice(start, stop) for start, stop in bounds)] = part
        elif sink is not None and part is not None:
            sink.write(spec, bounds[0][0] * math.prod(shape[1:]), numpy_view(part, spec))
    if full is not None and sink is not None:
        sink.write(spec, 0, numpy_view(full, spec))


def _from_rank(rank: int, own: Tensor, shape: Sequence[int], spec: TensorSpec, world: World) -> Tensor | None:
    """On rank 0, what `rank` holds; None on the others."""
    if rank == 0 or world.rank not in (0, rank):
        return own if world.rank == 0 else None
    if world.rank == rank:
        dist.send(own.detach().contiguous().to(world.device, _torch_dtype(spec)), dst=0)
        return None
    received = _empty(shape, spec, world)
    dist.recv(received, src=rank)
    return received


def _to_rank_0(entry: Entry, world: World) -> Tensor | None:
    own = _empty((0,), entry.spec, world) if entry.tensor is None else entry.tensor
    return _from_rank(entry.owner, own, entry.spec.shape, entry.spec, world)


def _empty(shape: Sequence[int], spec: TensorSpec, world: World) -> Tensor:
    return torch.empty(tuple(shape), dtype=_torch_dtype(spec), device=world.device)


def _torch_dtype(spec: TensorSpec) -> torch.dtype:
    return next(torch_dtype for torch_dtype, name in _DTYPES.items() if name == spec.dtype)


_SUPPORTED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
_NONNEGATIVE = frozenset({"step", "exp_avg_sq", "max_exp_avg_sq"})


def optimizer_entries(optimizer: torch.optim.Optimizer, parameters: Iterable[tuple[str, Tensor]]) -> list[Entry]:
    """The tensors that the optimizer keeps for each named parameter, as `optimizer.<what>.<parameter>`.

    An optimizer that has made no step yet gets state of zeros first, which means the same. What is kept: the momentum
    of SGD; the step (a float32 scalar) and the moments of Adam and AdamW. Raises ConfigurationError for others.
    """
    if not isinstance(optimizer, _SUPPORTED):
        kind = type(optimizer).__name__
        raise ConfigurationError(f"the state of {kind} cannot be averaged; use SGD, Adam or AdamW, or reset it")
    _begin(optimizer)
    return [
        Entry.of(f"optimizer.{what}.{name}", tensor, nonnegative=what in _NONNEGATIVE)
        for name, parameter in parameters
        for what, tensor in optimizer.state.get(parameter, {}).items()
        if isinstance(tensor, Tensor)
    ]


def parameter_of(name: str) -> str:
    """The parameter that an entry of the optimizer's state belongs to."""
    return name.split(".", 2)[2]


def _begin(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter without state the state from before the first step.

    Only the optimizer knows what it keeps, and it makes it in its first step. So it takes one of length zero, for
    these parameters alone.
    """
    every = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    new = [p for p in every if p not in optimizer.state]
    if not new:
        return
    optimizer.zero_grad()
    for parameter in new:
        parameter.grad = torch.zeros_like(parameter)
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = torch.zeros_like(rate) if isinstance(rate, Tensor) else 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    optimizer.zero_grad()
    for parameter in new:
        # Weight decay has left a trace, and the step was counted.
        for tensor in optimizer.state.get(parameter, {}).values():
            if isinstance(tensor, Tensor):
                tensor.zero_()
