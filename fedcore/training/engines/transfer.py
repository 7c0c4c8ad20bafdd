"""State into the ranks and out of them, one tensor at a time.

No rank holds more of the whole model than one tensor beside its own part. Where all ranks can read the file, each takes
its part of the memory map; otherwise rank 0 hands the tensors out.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from fedcore.errors import EncodingError
from fedcore.state import Layout, ModelState, StateSink, TensorSpec
from fedcore.training.engines.world import World

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a model's state.

    spec: of the whole tensor. tensor: what this rank holds of it, None for nothing. owner: a rank that holds all of it;
    of a DTensor every rank holds a part.
    """

    spec: TensorSpec
    tensor: Tensor | None
    owner: int = 0

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> Self:
        """For a parameter or buffer of this rank; EncodingError for a dtype that no state can hold."""
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None:
            raise EncodingError(f"tensor {name!r} is {tensor.dtype}, which a model's state cannot hold")
        return cls(TensorSpec(name=name, dtype=dtype, shape=tuple(tensor.shape)), tensor.detach())


def load_entries(entries: Sequence[Entry], state: ModelState | None, world: World) -> None:
    """Fill the entries from a state; raises EncodingError where it is another model's."""
    if state is not None:
        Layout(specs=tuple(entry.spec for entry in entries)).check_same(state.layout, what="the model that was sent")
    without = torch.tensor(float(state is None), device=world.device)
    everywhere = float(world.sum(without)) == 0
    for entry in entries:
        whole = None if state is None else torch_view(state[entry.spec.name], entry.spec)
        if not everywhere:
            whole = _from_rank_0(whole, entry.spec, world)
        if entry.tensor is not None and whole is not None:
            _fill(entry.tensor, whole)


def save_entries(entries: Iterable[Entry], sink: StateSink | None, world: World) -> None:
    """Write the whole tensors to rank 0's sink."""
    for entry in entries:
        whole = entry.tensor.full_tensor() if isinstance(entry.tensor, DTensor) else entry.tensor
        if entry.owner != 0:
            whole = _to_rank_0(whole, entry, world)
        if sink is not None and whole is not None:
            sink.write(entry.spec, 0, numpy_view(whole, entry.spec))


def torch_view(array: NDArray[Any], spec: TensorSpec) -> Tensor:
    """A tensor over the same memory, only to be read."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if spec.dtype == "BF16" else tensor


def numpy_view(tensor: Tensor, spec: TensorSpec) -> NDArray[Any]:
    """The elements in the storage dtype, flat and contiguous, in the memory of the host."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    found: NDArray[Any] = (flat.view(torch.uint16) if spec.dtype == "BF16" else flat).numpy()
    return found


def _empty(spec: TensorSpec, world: World) -> Tensor:
    dtype = next(torch_dtype for torch_dtype, name in _DTYPES.items() if name == spec.dtype)
    return torch.empty(spec.shape, dtype=dtype, device=world.device)


def _from_rank_0(whole: Tensor | None, spec: TensorSpec, world: World) -> Tensor:
    sent = _empty(spec, world)
    if world.rank == 0 and whole is not None:
        sent.copy_(whole)
    dist.broadcast(sent, src=0)
    return sent


def _to_rank_0(whole: Tensor | None, entry: Entry, world: World) -> Tensor | None:
    if world.rank == entry.owner and whole is not None:
        dist.send(whole.contiguous(), dst=0)
        return None
    if world.rank != 0:
        return None
    received = _empty(entry.spec, world)
    dist.recv(received, src=entry.owner)
    return received


@torch.no_grad()
def _fill(held: Tensor, whole: Tensor) -> None:
    if isinstance(held, DTensor):
        part = distribute_tensor(whole.to(held.device), held.device_mesh, held.placements, src_data_rank=None)
        held.to_local().copy_(part.to_local())
    else:
        held.copy_(whole)
