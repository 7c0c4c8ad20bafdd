"""Draw docs/figures/ddp.png: when gradients become ready in the backward pass, and when their buckets are sent.

Two gloo ranks train one step with DistributedDataParallel; hooks on rank 0 note the time at which each parameter's
gradient is complete, and the start and end of each bucket's all-reduce.

    python docs/make_ddp_figure.py
"""
# No postponed annotations here: DDP looks at those of its hook.

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FIGURE = Path(__file__).parent / "figures" / "ddp.png"
RANKS = 2
LAYERS, WIDTH, EXAMPLES = 8, 1024, 512
BUCKET_MIB = 8
WARM_UP = 3


def main() -> None:
    """Trace on two ranks, then draw."""
    trace = FIGURE.with_suffix(".json")
    FIGURE.parent.mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_rank, args=(port, str(trace)), nprocs=RANKS)  # type: ignore[no-untyped-call]
    draw(json.loads(trace.read_text()))
    trace.unlink()
    sys.stdout.write(f"{FIGURE}\n")


def _rank(rank: int, port: int, trace: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MIB)
    events = _Events(model)
    ddp.register_comm_hook(None, events.bucket)
    inputs = torch.randn(EXAMPLES, WIDTH)
    for _ in range(WARM_UP + 1):  # DDP orders its buckets after the first step
        ddp.zero_grad()
        loss = ddp(inputs).square().mean()
        events.begin()
        loss.backward()
    events.end()
    if rank == 0:
        Path(trace).write_text(json.dumps(events.to_json()))
    dist.barrier()
    del ddp
    dist.destroy_process_group()


class _Events:
    """Seconds since the beginning of the backward pass."""

    def __init__(self, model: nn.Sequential) -> None:
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._ready)
        self.begin()

    def begin(self) -> None:
        self._start = time.perf_counter()
        self.ready: dict[str, float] = {}
        self.buckets: list[dict[str, Any]] = []

    def end(self) -> None:
        self.backward = time.perf_counter() - self._start

    def _now(self) -> float:
        return time.perf_counter() - self._start

    def _ready(self, parameter: torch.Tensor) -> None:
        self.ready[self._names[parameter]] = self._now()  # type: ignore[index]

    def bucket(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """DDP's default hook, with notes: the mean over the ranks."""
        names = [self._names[parameter] for parameter in bucket.parameters()]  # type: ignore[index]
        entry: dict[str, Any] = {"index": bucket.index(), "parameters": names, "start": self._now()}
        self.buckets.append(entry)
        sending = dist.all_reduce(bucket.buffer(), async_op=True).get_future()

        def done(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            entry["end"] = self._now()
            return future.value()[0] / RANKS

        return sending.then(done)

    def to_json(self) -> dict[str, Any]:
        return {"ready": self.ready, "buckets": self.buckets, "backward": self.backward}


def draw(trace: dict[str, Any]) -> None:
    """One row for each layer's gradient, in the order of the model, and one for each bucket."""
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    layers = [name for name in trace["ready"] if name.endswith("weight")]
    layers.sort(key=lambda name: int(name.split(".")[0]))
    for row, name in enumerate(layers):
        axes.plot(1e3 * trace["ready"][name], row, "o", color="tab:blue")
    rows = len(layers)
    for place, bucket in enumerate(trace["buckets"]):
        length = 1e3 * (bucket["end"] - bucket["start"])
        axes.barh(rows + place, length, left=1e3 * bucket["start"], height=0.6, color="tab:orange")
    labels = [f"gradient of layer {name.split('.')[0]}" for name in layers]
    labels += [f"all-reduce, bucket {b['index']}: layers {_span(b['parameters'])}" for b in trace["buckets"]]
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.axvline(1e3 * max(trace["ready"].values()), color="grey", linestyle=":", label="last gradient ready")
    axes.set_xlabel("milliseconds since the backward pass began")
    axes.set_title(f"DDP, {RANKS} gloo ranks, {LAYERS} layers of {WIDTH} x {WIDTH}, buckets of {BUCKET_MIB} MiB")
    axes.legend(loc="upper left")
    figure.savefig(FIGURE, dpi=110)


def _span(names: list[str]) -> str:
    numbers = sorted({int(name.split(".")[0]) for name in names}, reverse=True)
    return ", ".join(map(str, numbers))


if __name__ == "__main__":
    main()
