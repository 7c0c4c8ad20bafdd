"""A small GPT: the decoder-only transformer of Radford et al. (2019, "GPT-2"), from 1e6 to 1e9 parameters.

Query, key and value are layers of their own, where GPT-2 has one layer for the three: tensor parallelism then splits
each of them by heads and nothing has to be rearranged (Shoeybi et al. 2019, section 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedcore.errors import ConfigurationError, UsageError
from fedcore.training.engines.building import ParallelPlan, Split

_SIZES = {
    # layers, heads, width; with a vocabulary of 256 and a context of 256 within 6 % of what the name says
    "1m": (5, 4, 128),
    "3m": (7, 6, 192),
    "10m": (8, 8, 320),
    "30m": (9, 8, 528),
    "100m": (14, 12, 768),
    "300m": (24, 16, 1024),
    "1b": (20, 16, 2048),
}

_DEVIATION = 0.02
"""Standard deviation of fresh weights (Radford et al. 2018, section 4.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """Shape of a GPT.

    vocabulary: number of tokens.
    context: longest input, in tokens.
    width: of the residual stream, a multiple of heads.
    tied: the output layer uses the weight of the token embedding (Press and Wolf 2017), as GPT-2 does.
    """

    vocabulary: int
    context: int
    layers: int
    heads: int
    width: int
    tied: bool = True

    def __post_init__(self) -> None:
        for name in ("vocabulary", "context", "layers", "heads", "width"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} of a GPT must be at least 1, not {getattr(self, name)}")
        if self.width % self.heads:
            raise ConfigurationError(f"the width of a GPT, {self.width}, must be a multiple of its {self.heads} heads")

    @classmethod
    def of_size(cls, size: str, *, vocabulary: int = 256, context: int = 256, tied: bool = True) -> Self:
        """A usual shape by its number of parameters: "1m", "3m", "10m", "30m", "100m", "300m" or "1b".

        The names hold for a small vocabulary, such as the 256 byte values; a larger one adds its embedding.
        """
        if size not in _SIZES:
            raise ConfigurationError(f"no GPT of size {size!r}; known sizes: {', '.join(_SIZES)}")
        layers, heads, width = _SIZES[size]
        return cls(vocabulary=vocabulary, context=context, layers=layers, heads=heads, width=width, tied=tied)

    @property
    def parameters(self) -> int:
        """Number of parameters.

        Per block, with width w: 4 w^2 + 4 w for attention, 8 w^2 + 5 w for the two layers behind it, 4 w for two norms.
        Outside the blocks: token and position embedding, the last norm, and an output layer of its own if not tied.
        """
        w = self.width
        embeddings = (self.vocabulary * (1 if self.tied else 2) + self.context) * w
        return self.layers * (12 * w**2 + 13 * w) + embeddings + 2 * w


class Embedding(nn.Module):
    """Tokens and their positions: int64 [n, length] -> [n, length, width]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)

    def forward(self, tokens: Tensor) -> Tensor:
        length, context = tokens.shape[1], self.positions.num_embeddings
        if length > context:
            raise UsageError(f"an input of {length} tokens is longer than the model's context of {context}")
        embedded: Tensor = self.tokens(tokens) + self.positions.weight[:length]
        return embedded


class Attention(nn.Module):
    """Causal self-attention, [n, length, width] -> [n, length, width].

    Works on as many heads as the layers give it: all of them, or one rank's share.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.output = nn.Linear(config.width, config.width)
        self._head_width = config.width // config.heads

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        joined: Tensor = self.output(mixed.transpose(1, 2).flatten(start_dim=2))
        return joined

    def _heads(self, x: Tensor) -> Tensor:
        """[n, length, heads * head width] -> [n, heads, length, head width]."""
        return x.view(*x.shape[:2], -1, self._head_width).transpose(1, 2)


class MLP(nn.Module):
    """Two layers with GELU between them, four times as wide inside."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.hidden = nn.Linear(config.width, 4 * config.width)
        self.output = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(functional.gelu(self.hidden(x), approximate="tanh"))
        return out


class Block(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream [n, length, width]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Head(nn.Module):
    """The last norm and the output layer: [n, length, width] -> logits [n, length, vocabulary]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.output = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.output(self.norm(x))
        return logits


class GPT(nn.Module):
    """Predicts, at every position, the token that comes next; int64 [n, length] -> logits [n, length, vocabulary]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = Head(config)
        self._initialise()
        if config.tied:
            self.head.output.weight = self.embedding.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits for `tokens`; raises UsageError if the input is longer than the context."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits

    def parallel_plan(self) -> ParallelPlan:
        """How engines with several ranks divide the model."""
        blocks = tuple(f"blocks.{number}" for number in range(self.config.layers))
        layers = ("embedding", *blocks, "head")
        return ParallelPlan(blocks=blocks, tensor=_tensor_plan(), heads=self.config.heads, layers=layers)

    @torch.no_grad()
    def _initialise(self) -> None:
        """Radford et al. (2019), section 2.3: layers that add to the residual stream start smaller, by their number."""
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                adds = name.endswith((".attention.output", ".mlp.output"))
                deviation = _DEVIATION / math.sqrt(2 * self.config.layers) if adds else _DEVIATION
                nn.init.normal_(module.weight, std=deviation)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


def _tensor_plan() -> dict[str, Split]:
    """Each pair of layers needs one all-reduce: columns first, then rows (Shoeybi et al. 2019, section 3)."""
    columns = ("attention.query", "attention.key", "attention.value", "mlp.hidden")
    rows = ("attention.output", "mlp.output")
    return {
        "embedding.tokens": "embedding",
        **dict.fromkeys((f"blocks.*.{name}" for name in columns), "colwise"),
        **dict.fromkeys((f"blocks.*.{name}" for name in rows), "rowwise"),
        "head.output": "output",
    }
