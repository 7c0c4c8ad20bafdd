"""How the ranks of one client train together, as the owner of its machines sets it with `--engine-set key=value`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from fedcore.errors import ConfigurationError
from fedcore.system.assignments import arguments, kebab
from fedcore.system.plugins import Registry, with_methods

_OWN: Final = {
    "single": "replicated:SingleEngine",
    "ddp": "replicated:DdpEngine",
    "fsdp": "fsdp:FsdpEngine",
    "hsdp": "fsdp:FsdpEngine",
    "tp": "tp:TensorEngine",
    "ddp-tp": "tp:TensorEngine",
    "pp": "pp:PipelineEngine",
}


ENGINES: Final[Registry[Any]] = Registry(
    "engine",
    "fedcore.engines",
    {name: f"fedcore.training.engines.{module}" for name, module in _OWN.items()},
    where="--engine-set",
    accept=with_methods("step", "load", "save"),
)
"""The classes, imported when they are used: what shards a model takes longer to import than the rest of torch."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the ranks of one client train one model together; the owner of the machines decides it, not the app.

    engine: "single"; "ddp" (a replica on each rank, gradients averaged); "fsdp" (parameters, gradients and optimizer
        state sharded over all ranks); "hsdp" (sharded within groups of `shard` ranks, replicated between them); "tp"
        (each layer split over all ranks); "ddp-tp" (split over `tensor` ranks, replicated between such groups); "pp"
        (consecutive layers on consecutive ranks); or one that an installed package brings.
    precision: "fp32", or "bf16" for autocast of the forward pass; parameters and sums stay in float32.
    micro_batches: how many a rank makes of its share of a batch, to work through one after another (gradient
        accumulation); for "pp" the micro-batches of the schedule, 0 for twice the number of ranks.
    hook: what DDP sends: "none" for float32 gradients, "fp16" or "bf16", or "powersgd" for a low-rank approximation.
    static_graph: tells DDP that every step uses the same parameters.
    shard, tensor: ranks of one group; see `engine`.
    schedule: order of the pipeline's work; "interleaved" gives each rank two separate runs of layers.
    offload: "fsdp" and "hsdp" keep parameters, gradients and optimizer state in the memory of the host.
    checkpoint: keep only the inputs of each block for the backward pass, and compute the rest again.
    compile: compile the model with torch.compile.
    deterministic: refuse operations that may give another result the next time.
    memory_share: of a GPU's memory, what one rank may have, up to 1; 0 for no limit. For several clients on one GPU.
    """

    engine: str = "single"
    precision: Literal["fp32", "bf16"] = "fp32"
    micro_batches: int = 0
    hook: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    static_graph: bool = False
    shard: int = 0
    tensor: int = 0
    schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"
    offload: bool = False
    checkpoint: bool = False
    compile: bool = False
    deterministic: bool = False
    memory_share: float = 0.0

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, ranks: int, where: str = "--engine-set") -> Self:
        """Build from kebab-case keys for a group of `ranks`; more than one rank means "ddp" unless the keys say other.

        Raises UnknownKey for an unknown key, UnknownName for an engine that this machine lacks, ConfigurationError for
        settings that do not fit each other or the number of ranks.
        """
        chosen = {"engine": "ddp" if ranks > 1 else "single", **values}
        config = cls(**arguments(cls, chosen, where))
        config.check(ranks)
        return config

    def to_mapping(self) -> dict[str, Any]:
        """The inverse of `from_mapping`: every key, kebab-case."""
        return {kebab(field.name): getattr(self, field.name) for field in dataclasses.fields(self)}

    def data_ranks(self, ranks: int) -> int:
        """How many parts a batch is divided into over a group of `ranks`."""
        if self.engine in ("single", "tp", "pp"):
            return 1
        return ranks // self.tensor if self.engine == "ddp-tp" else ranks

    def check(self, ranks: int) -> None:
        """Raise ConfigurationError unless a group of `ranks` can be set up like this.

        What goes with an engine from outside, that engine says as it is made.
        """
        ENGINES.check(self.engine)
        if self.engine == "single" and ranks > 1:
            raise ConfigurationError(f"engine single is for one rank, not {ranks}; ddp is the usual choice")
        if self.engine == "pp" and ranks < 2:
            raise ConfigurationError("engine pp needs at least two ranks; see --nproc-per-node")
        if self.micro_batches < 0:
            raise ConfigurationError(f"micro-batches cannot be {self.micro_batches}; 0 stands for the default")
        if not 0 <= self.memory_share <= 1:
            raise ConfigurationError(
                f"memory-share must be in [0, 1], not {self.memory_share:g}; 0.5 is half of a GPU's memory, 0 no limit"
            )
        if self.engine not in _OWN:
            return
        for name, size, engine in (("shard", self.shard, "hsdp"), ("tensor", self.tensor, "ddp-tp")):
            if (self.engine == engine) != (size > 0):
                raise ConfigurationError(f"{name} is for engine {engine}, which needs it: the ranks of one group")
            if size and ranks % size:
                raise ConfigurationError(f"{name} = {size} does not divide the {ranks} ranks")
        only = {"hook": ("ddp",), "static_graph": ("ddp",), "offload": ("fsdp", "hsdp"), "schedule": ("pp",)}
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name, engines in only.items():
            if getattr(self, name) != defaults[name] and self.engine not in engines:
                raise ConfigurationError(f"{kebab(name)} is for engine {' or '.join(engines)}, not {self.engine}")
