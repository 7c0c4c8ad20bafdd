"""The measurements of `benchmarks/gpu.py`: each a ratio to the shortest loop that one would write by hand.

Every function takes what it is to fill with its findings, and `quick`; without a GPU it does the same on the processor,
with sizes that only show that it works.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.common import GIB
from benchmarks.gpt import VOCABULARY, flops_per_token, matrix_rate
from benchmarks.gpu_found import Found, Row
from benchmarks.groups import on_ranks
from benchmarks.stopwatch import median_ratio, take_turns
from fedcore.data import Split
from fedcore.errors import OutOfMemory
from fedcore.run.engine_config import EngineConfig
from fedcore.system import process_group
from fedcore.training import Engine, OptimizerConfig, Recipe, World, make_engine, train
from fedcore.training.models import GPT, GPTConfig, resnet18_groupnorm

LARGEST_SECONDS = 50.0
"""What an upload of 1e9 parameters may take to measure, data and all."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is trained. flops: of one example's step; 0 if nobody counted them."""

    name: str
    build: Callable[[], nn.Module]
    optimizer: OptimizerConfig
    data: Split
    batch: int
    precision: str
    clip: float = 0.0
    flops: float = 0.0

    def engine(self, **settings: object) -> Engine:
        config = EngineConfig.from_mapping({"precision": self.precision, **settings}, ranks=World.current().size)
        torch.manual_seed(1)
        return make_engine(Recipe(build=self.build, optimizer=self.optimizer, keep_weights=True), config)

    def ours(self, engine: Engine) -> Callable[[], None]:
        """One pass over the data with our engine."""

        def turn() -> None:
            for batch in engine.batches(self.data, batch_size=self.batch, seed=0, epochs=1):
                engine.step(batch, clip_norm=self.clip)

        return turn

    def bare(self) -> Callable[[], None]:
        """One pass with the shortest loop by hand, whose data lie on the device and keep their order."""
        device = World.current().device
        torch.manual_seed(1)
        model = self.build().to(device)
        optimizer = self.optimizer(model)
        x, y = torch.tensor(self.data.x, device=device), torch.tensor(self.data.y, device=device)

        def turn() -> None:
            for start in range(0, len(x), self.batch):
                optimizer.zero_grad()
                with autocast(self.precision):
                    features = x[start : start + self.batch]
                    output = model(features.float() / 255 if features.dtype == torch.uint8 else features)
                    loss = mean_loss(output, y[start : start + self.batch])
                loss.backward()  # type: ignore[no-untyped-call]
                if self.clip:
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()

        return turn


def autocast(precision: str) -> AbstractContextManager[Any]:
    """As `EngineConfig.precision` says."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(World.current().device.type, torch.bfloat16)


def mean_loss(output: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy over all positions."""
    return functional.cross_entropy(output.flatten(0, -2), targets.flatten())


def gpt_work(*, small: bool, precision: str = "", batch: int = 0) -> Work:
    """A GPT of 1e8 parameters on a GPU, of 1e6 without or where the part wants a small one."""
    gpu = on_gpu()
    shape = GPTConfig.of_size("1m" if not gpu else "10m" if small else "100m", context=1024 if gpu else 32)
    batch = batch or (32 if gpu else 2)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (batch * (6 if gpu else 2), shape.context + 1))
    return Work(
        name=f"GPT of {shape.parameters:.1e}",
        build=lambda: GPT(shape),
        optimizer=OptimizerConfig(name="adamw", lr=3e-4),
        data=Split(x=tokens[:, :-1], y=tokens[:, 1:]),
        batch=batch,
        precision=precision or ("bf16" if gpu else "fp32"),
        clip=1.0,
        flops=flops_per_token(shape, shape.context) * shape.context,
    )


def resnet_work(precision: str, *, side: int = 32, batches: int = 10) -> Work:
    """ResNet-18 on made-up images, grey levels as they lie in a file."""
    gpu = on_gpu()
    batch = 512 if gpu else 4
    side, batches = (side, batches) if gpu else (8, 2)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (batch * batches, 3, side, side), dtype=np.uint8)
    build = functools.partial(resnet18_groupnorm, classes=10)
    counter = FlopCounterMode(display=False)
    with counter:
        build()(torch.zeros(1, 3, side, side)).sum().backward()
    return Work(
        name=f"ResNet-18, {precision}",
        build=build,
        optimizer=OptimizerConfig(lr=0.1, momentum=0.9),
        data=Split(x=images, y=generator.integers(0, 10, len(images))),
        batch=batch,
        precision=precision,
        flops=float(counter.get_total_flops()),
    )


def words(found: Found, quick: bool) -> None:
    """Rounding, packing and masking of an upload, as in `benchmarks/device_codec.py`."""
    from benchmarks import device_codec as codec  # it settles how Triton runs

    device = torch.device("cuda" if on_gpu() else "cpu")
    differing = sum(codec.differences(bits, 10**6 if on_gpu() else codec.SMALL, device) for bits in codec.WIDTHS)
    found.figure("words_that_differ", float(differing), unit="words", aim=0.0)
    if not on_gpu():
        found.note("words: made by Triton's interpreter on the processor, so there are no times")
        return
    rate = codec.mask_rate(device, (10**8 if quick else 10**9) // 4)
    found.figure("mask_tb_a_second", rate, unit="TB/s", aim=codec.MASK_AIM, at_least=True)
    for size in (10**7,) if quick else (10**8, 10**9):
        began = time.perf_counter()
        there, here = codec.upload_seconds(size, device)
        found.figure(f"upload_ready_over_host_{_short(size)}", there / here, aim=1.0)
        found.note(
            f"an upload of {_short(size)} parameters with {codec.MASKS} masks is ready after {1e3 * there:.1f} ms, "
            f"made by the host after {1e3 * here:.1f}"
        )
        if 10 * (time.perf_counter() - began) > LARGEST_SECONDS:
            break  # the next one would take too long


def gpt(found: Found, quick: bool) -> None:
    """Our loop against a bare one, and compiled against eager."""
    work = gpt_work(small=quick)
    rate = matrix_rate(work.precision, 8192 if on_gpu() else 512)
    _compare(found, work, work.engine(), "gpt", rate, turns=3 if quick else 5)
    eager, compiled = work.engine(), work.engine(compile=True)
    times = take_turns((work.ours(eager), work.ours(compiled)), 3, seconds)
    found.figure("gpt_compiled_over_eager", value=median_ratio(times), aim=1.0, at_least=True)
    found.row(_row(f"{work.name}, compiled", work, median(times[1]), median(times[0]) / median(times[1]), rate))
    found.note("compiled: over our own eager steps, after the first pass, which compiles")


def resnet(found: Found, quick: bool) -> None:
    """Our loop against a bare one, in float32 (convolutions in TF32, as torch has it) and in bfloat16."""
    for precision in ("fp32", "bf16"):
        work = resnet_work(precision)
        rate = matrix_rate(precision, 8192 if on_gpu() else 512)
        _compare(found, work, work.engine(), f"resnet_{precision}", rate, turns=3 if quick else 5)


def engines(found: Found, quick: bool) -> None:
    """Each engine that one device allows, in a group of one, and two ranks that share the device."""
    work = gpt_work(small=True)
    turns = 2 if quick else 3
    process_group.join_alone()
    failed = []
    for settings in (
        {"engine": "single"}, {"engine": "ddp"}, {"engine": "fsdp"}, {"engine": "fsdp", "offload": True},
        {"engine": "single", "checkpoint": True},
    ):  # fmt: skip
        name = " ".join(key if value is True else str(value) for key, value in settings.items())
        try:
            _one_engine(found, work, name, settings, turns)
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    alone = median(seconds(work.bare()) for _ in range(turns + 1))
    both = max(on_ranks(2, two_share, turns))
    found.row(_row("ddp, two ranks", work, both, alone / both))
    found.note("two ranks share the device over gloo: each step waits for sums that pass through the host")
    if failed:
        raise RuntimeError("; ".join(failed))


def _one_engine(found: Found, work: Work, name: str, settings: dict[str, Any], turns: int) -> None:
    engine = work.engine(**settings)
    peak = peak_of(work.ours(engine))
    times = take_turns((work.bare(), work.ours(engine)), turns, seconds)
    found.row(_row(name, work, median(times[1]), median_ratio(times), peak=peak))
    engine.close()


def two_share(turns: int) -> float:
    """On one of two ranks: seconds of a pass."""
    work = gpt_work(small=True)
    turn = work.ours(work.engine(engine="ddp"))
    turn()
    return median(seconds(turn) for _ in range(turns))


def loading(found: Found, quick: bool) -> None:
    """Data that stay on the host, sent batch by batch, against the same data on the device."""
    work = resnet_work("bf16", side=64, batches=12)
    kept, sent = work.engine(), work.engine()
    sent.loaders.room = 0
    times = take_turns((work.ours(kept), work.ours(sent)), 3 if quick else 6, seconds)
    found.figure("sent_over_kept", value=median_ratio(times), aim=0.9, at_least=True)
    found.row(_row("images kept on the device", work, median(times[0]), 1.0))
    found.row(_row("images sent batch by batch", work, median(times[1]), median_ratio(times)))
    found.note("loading: over our own loop with the data on the device")


def memory(found: Found, quick: bool) -> None:
    """A share of the GPU, more than it asked for, and the training after that: as fast as before."""
    del quick
    work, share = gpt_work(small=True, batch=8), 0.2
    if not on_gpu():
        found.note("memory: needs a GPU; tests/gpu/test_memory.py shows the same on the processor")
        return
    engine = work.engine(**{"memory-share": share})
    turn = work.ours(engine)
    turn()
    before = median(seconds(turn) for _ in range(3))
    tokens = np.zeros((8192, work.data.x.shape[1]), np.int64)
    began = time.perf_counter()
    try:
        train(engine, Split(x=tokens, y=tokens), batch_size=0, seed=1, epochs=1)
        found.note("memory: 8192 sequences at once found room, so that nothing had to be recovered")
    except OutOfMemory as error:
        found.note(f"memory: after {time.perf_counter() - began:.2f} s: {error}")
    turn()
    after = median(seconds(turn) for _ in range(3))
    limit = share * torch.cuda.get_device_properties(0).total_memory
    found.figure("speed_after_out_of_memory", before / after, aim=0.9, at_least=True)
    found.figure("reserved_over_share", torch.cuda.max_memory_reserved() / limit, aim=1.0)
    found.row(_row(f"a share of {share:g}, recovered", work, after, before / after))


PARTS: dict[str, Callable[[Found, bool], None]] = {
    "words": words, "gpt": gpt, "resnet": resnet, "engines": engines, "loading": loading, "memory": memory,
}  # fmt: skip


def on_gpu() -> bool:
    """Whether there is one."""
    return torch.cuda.is_available()


def seconds(work: Callable[[], object]) -> float:
    """Seconds of `work` until the device has done it."""
    _wait()
    started = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - started


def _wait() -> None:
    if on_gpu():
        torch.cuda.synchronize()


def peak_of(turn: Callable[[], None]) -> str:
    """GiB of the device's memory that one pass takes at most, with all that lies there."""
    if not on_gpu():
        return "-"
    torch.cuda.reset_peak_memory_stats()
    turn()
    return f"{torch.cuda.max_memory_allocated() / GIB:.2f}"


def _compare(found: Found, work: Work, engine: Engine, name: str, rate: float, *, turns: int) -> None:
    peak = peak_of(work.ours(engine))
    times = take_turns((work.bare(), work.ours(engine)), turns, seconds)
    ratio = median_ratio(times)
    found.figure(f"{name}_over_bare", value=ratio, aim=0.95, at_least=True)
    used = work.flops * len(work.data) / median(times[1]) / rate
    found.figure(f"{name}_flops_over_matrix_rate", value=used, aim=0.3, at_least=True)
    found.row(_row(work.name, work, median(times[1]), ratio, rate, peak))
    engine.close()


def _short(size: int) -> str:
    return f"{size:.0e}".replace("+0", "")


def _row(name: str, work: Work, took: float, ratio: float, rate: float = 0.0, peak: str = "-") -> Row:
    used = f"{work.flops * len(work.data) / took / rate:.3f}" if rate else "-"
    return name, f"{len(work.data) / took:.1f}", f"{ratio:.3f}", used, peak
