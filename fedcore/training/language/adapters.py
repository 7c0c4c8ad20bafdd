"""Adapters on a frozen language model, and their way into PEFT's format.

"lora": the update of a weight is s B A with both trained (Hu et al. 2021, arXiv 2106.09685). Averaged apart, the mean
of B times the mean of A is not the mean of B A. "sb": the update is s B R A, and only R, of rank x rank elements, is
trained and sent (Singhal et al. 2025, "Fed-SB", arXiv 2502.15436), so that the mean of R is that of the updates
exactly. A and B are the singular vectors of the base's weight that belong to its largest singular values, as in LoRA-XS
(Bałazy et al. 2024, arXiv 2405.17604); Fed-SB takes them from an estimated first update instead. R begins at zero, as B
does in LoRA.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import peft
import torch
from peft.utils.integrations import dequantize_module_weight
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.training.huggingface import CausalLM, with_lora
from fedcore.training.seeds import derive_seed, seeded

ADAPTERS: Final = ("lora", "sb")
_NAME: Final = "default"
_EXACT: Final = 512
"""Of a layer's smaller side: up to this, all of its singular values are computed."""
_OVERSAMPLED: Final = 8
_POWER_STEPS: Final = 8


def with_adapter(base: Any, kind: str = "lora", *, rank: int, alpha: float, seed: int = 0) -> CausalLM:
    """The base frozen, with an adapter on each linear layer but the last; the model starts as the base is.

    Raises ConfigurationError for a rank below 1, or above the size of a layer for "sb".

    Args:
        kind: "lora" or "sb".
        alpha: the update is scaled by alpha / rank.
        seed: decides A of LoRA, and how the vectors of large layers are approximated.
    """
    if kind not in ADAPTERS:
        raise UnknownKey(kind, ADAPTERS, "adapter")
    with seeded(derive_seed("adapter", seed)):
        model = with_lora(base, rank=rank, alpha=alpha)
        if kind == "sb":
            for layer in _layers(model):
                _fix(layer, rank)
    return model


class SmallMatrix(nn.Module):
    """B R in place of LoRA's B: [n, rank] -> [n, out], of which R alone is trained.

    up: B [out, rank], fixed.
    core: R [rank, rank], zero at first.
    """

    up: Tensor

    def __init__(self, up: Tensor) -> None:
        super().__init__()
        self.register_buffer("up", up, persistent=False)
        self.core = nn.Parameter(torch.zeros(up.shape[1], up.shape[1], dtype=up.dtype, device=up.device))
        self.bias = None

    @property
    def weight(self) -> Tensor:
        """B R, which PEFT reads if it merges the adapter."""
        return self.up @ self.core

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(functional.linear(x, self.core), self.up)


def save_peft(model: nn.Module, folder: Path) -> None:
    """Write the adapter as PEFT does: adapter_config.json and adapter_model.safetensors in a folder that exists.

    `PeftModel.from_pretrained(base, folder)` reads it. The adapter "sb" becomes an ordinary LoRA with B R as its B.
    """
    if not isinstance(model, CausalLM) or not isinstance(model.transformer, peft.PeftModel):
        raise ConfigurationError(
            f"the app's model is a {type(model).__name__} without an adapter of PEFT: with_adapter or with_lora of "
            "fedcore.training puts one on",
            check="no-adapter",
        )
    tensors: dict[str, Tensor] = {}
    for name, layer in model.transformer.named_modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer) and _NAME in layer.lora_A:
            for part in ("lora_A", "lora_B"):
                weight = getattr(layer, part)[_NAME].weight
                tensors[f"{name}.{part}.weight"] = weight.detach().cpu().contiguous().clone()
    config = model.transformer.peft_config[_NAME]
    names = config.target_modules if isinstance(config.target_modules, str) else sorted(config.target_modules)
    replace(config, inference_mode=True, target_modules=names).save_pretrained(str(folder))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _layers(model: CausalLM) -> list[Any]:
    return [one for one in model.modules() if isinstance(one, peft.tuners.lora.LoraLayer) and _NAME in one.lora_A]


def _fix(layer: Any, rank: int) -> None:
    """Give a layer of LoRA an A and a B that stay, with R between them."""
    weight = dequantize_module_weight(layer.get_base_layer()).detach()
    weight = weight.T if layer.fan_in_fan_out else weight
    if rank > min(weight.shape):
        raise ConfigurationError(
            f"adapter sb: rank {rank} is more than a layer of {weight.shape[0]} x {weight.shape[1]} has",
            check="adapter-rank",
        )
    up, down = _singular_vectors(weight, rank)
    first = layer.lora_A[_NAME]
    with torch.no_grad():
        first.weight.copy_(down)
    first.weight.requires_grad_(False)
    layer.lora_B[_NAME] = SmallMatrix(up.to(first.weight))


def _singular_vectors(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Orthonormal B [out, rank] and A [rank, in] of the largest singular values, of large layers nearly so.

    In float64, so that machines that round differently agree once they are float32, and with one sign for each pair.
    """
    wide = weight.double().cpu()
    if min(wide.shape) <= _EXACT:
        up, _, right = torch.linalg.svd(wide, full_matrices=False)
        across = right.T
    else:  # Halko et al. 2011, arXiv 0909.4061: seconds in place of minutes
        up, _, across = torch.svd_lowrank(wide, q=min(rank + _OVERSAMPLED, *wide.shape), niter=_POWER_STEPS)
    up, across = up[:, :rank], across[:, :rank]
    largest = across.abs().argmax(dim=0)
    signs = torch.sign(across[largest, torch.arange(rank)])
    return (up * signs).contiguous(), (across * signs).T.contiguous()
