"""Print what an all-reduce costs: a ring of sends, once as reduce-scatter and once as all-gather, counted byte by byte.

Gloo ranks pass chunks around a ring themselves and count what they send; the result is compared with torch's own
`all_reduce`. The table is the one in docs/training.md.

    python docs/make_collectives_table.py
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

ELEMENTS = 1 << 20
SIZES = (2, 4, 8)


def main() -> None:
    """Run each size, and print one row for each."""
    rows = [
        "| ranks | sent by a rank, times the tensor | 2 (p - 1) / p | largest difference |",
        "| --- | --- | --- | --- |",
    ]
    for ranks in SIZES:
        with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            probe.close()
            mp.spawn(_rank, args=(ranks, port, folder), nprocs=ranks)  # type: ignore[no-untyped-call]
            sent, difference = map(float, Path(folder, "0").read_text().split())
        rows.append(f"| {ranks} | {sent / (4 * ELEMENTS):.4f} | {2 * (ranks - 1) / ranks:.4f} | {difference:.1e} |")
    sys.stdout.write("\n".join(rows) + "\n")


class Ring:
    """Rank r sends to r + 1 and receives from r - 1."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks, self.sent = rank, ranks, 0

    def shift(self, outgoing: Tensor) -> Tensor:
        """Send one chunk onwards and return the one that comes in."""
        incoming = torch.empty_like(outgoing)
        sending = dist.isend(outgoing, (self.rank + 1) % self.ranks)
        dist.recv(incoming, (self.rank - 1) % self.ranks)
        if sending is not None:
            sending.wait()
        self.sent += outgoing.nbytes
        return incoming

    def reduce_scatter(self, chunks: list[Tensor]) -> None:
        """After p - 1 steps rank r holds the sum of chunk r + 1."""
        for step in range(self.ranks - 1):
            incoming = self.shift(chunks[(self.rank - step) % self.ranks])
            chunks[(self.rank - step - 1) % self.ranks].add_(incoming)

    def all_gather(self, chunks: list[Tensor]) -> None:
        """After p - 1 more steps every rank holds every sum."""
        for step in range(self.ranks - 1):
            incoming = self.shift(chunks[(self.rank + 1 - step) % self.ranks])
            chunks[(self.rank - step) % self.ranks].copy_(incoming)


def _rank(rank: int, ranks: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    ours = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(rank))
    theirs = ours.clone()
    ring = Ring(rank, ranks)
    chunks = list(ours.chunk(ranks))
    ring.reduce_scatter(chunks)
    ring.all_gather(chunks)
    dist.all_reduce(theirs)
    if rank == 0:
        Path(folder, "0").write_text(f"{ring.sent} {float((ours - theirs).abs().max())}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
