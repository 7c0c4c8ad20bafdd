"""The GPT: its size, what it may look at, its first weights and its gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from fedcore.errors import ConfigurationError, UsageError
from fedcore.training import seeded
from fedcore.training.losses import cross_entropy
from fedcore.training.models import GPT, GPTConfig

SMALL = GPTConfig(vocabulary=11, context=6, layers=2, heads=2, width=4)
SIZES = ("1m", "3m", "10m", "30m", "100m", "300m", "1b")


def fresh(config: GPTConfig, dtype: torch.dtype = torch.float64) -> GPT:
    with seeded(0):
        return GPT(config).to(dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tied", [True, False])
def test_the_formula_counts_the_parameters(size: str, tied: bool) -> None:
    config = GPTConfig.of_size(size, tied=tied)
    with torch.device("meta"):
        model = GPT(config)
    assert sum(p.numel() for p in model.parameters()) == config.parameters
    named = float(size[:-1]) * {"m": 1e6, "b": 1e9}[size[-1]]
    if tied:
        assert config.parameters == pytest.approx(named, rel=0.08)


def test_the_published_sizes_of_gpt_2() -> None:
    small = GPTConfig(vocabulary=50257, context=1024, layers=12, heads=12, width=768)
    assert small.parameters == 124_439_808
    largest = GPTConfig(vocabulary=50257, context=1024, layers=48, heads=25, width=1600)
    assert largest.parameters == 1_557_611_200


def test_a_position_sees_no_later_one() -> None:
    model = fresh(SMALL)
    tokens = torch.arange(6).unsqueeze(0)
    changed = tokens.clone()
    changed[0, 4] = 9
    before, after = model(tokens), model(changed)
    assert before.shape == (1, 6, 11)
    torch.testing.assert_close(before[:, :4], after[:, :4], rtol=0, atol=0)
    assert (before[:, 4:] - after[:, 4:]).abs().amax(dim=2).min() > 0


def test_attention_is_that_of_the_paper() -> None:
    """Vaswani et al. (2017), equation 1, head by head."""
    config = GPTConfig(vocabulary=11, context=6, layers=1, heads=2, width=4)
    attention = fresh(config).blocks[0].attention
    x = torch.randn(1, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    heads = []
    for columns in (slice(0, 2), slice(2, 4)):
        query, key, value = (layer(x)[0][:, columns] for layer in (attention.query, attention.key, attention.value))
        scores = query @ key.T / math.sqrt(2)
        scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
        heads.append(functional.softmax(scores, dim=1) @ value)
    torch.testing.assert_close(attention(x)[0], attention.output(torch.cat(heads, dim=1)))


def test_first_weights() -> None:
    model = fresh(GPTConfig(vocabulary=64, context=32, layers=8, heads=4, width=64), torch.float32)
    assert model.head.output.weight is model.embedding.tokens.weight
    block = model.blocks[3]
    assert float(block.mlp.hidden.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    for layer in (block.attention.output, block.mlp.output):
        assert float(layer.weight.detach().std()) == pytest.approx(0.02 / 4, rel=0.05)
        assert not layer.bias.any()
    # Nothing is known yet: the loss is that of a guess.
    tokens, targets = torch.randint(64, (2, 8, 32), generator=torch.Generator().manual_seed(0))
    loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).detach()
    assert float(loss) == pytest.approx(math.log(64), rel=0.02)


def test_the_names_of_the_tensors() -> None:
    layers = ("attention.query", "attention.key", "attention.value", "attention.output")
    layers += ("attention_norm", "mlp_norm", "mlp.hidden", "mlp.output")
    names = {f"blocks.{block}.{layer}.{what}" for block in range(2) for layer in layers for what in ("weight", "bias")}
    names |= {"embedding.tokens.weight", "embedding.positions.weight"}
    names |= {"head.norm.weight", "head.norm.bias", "head.output.weight"}
    assert set(fresh(SMALL).state_dict()) == names


def test_pieces_in_a_row_are_the_model() -> None:
    model = fresh(SMALL)
    x = tokens = torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(1))
    for layer in model.parallel_plan().layers:
        x = model.get_submodule(layer)(x)
    torch.testing.assert_close(x, model(tokens), rtol=0, atol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_gradients_are_those_of_finite_differences(tied: bool) -> None:
    config = GPTConfig(vocabulary=3, context=3, layers=1, heads=2, width=2, tied=tied)
    model = fresh(config)
    tokens = torch.tensor([[0, 2, 1], [1, 1, 0]])
    values = {name: p.detach().clone().mul_(20).requires_grad_() for name, p in model.named_parameters()}

    def losses(*parameters: torch.Tensor) -> torch.Tensor:
        output = torch.func.functional_call(model, dict(zip(values, parameters, strict=True)), (tokens,))
        return cross_entropy(output, tokens.flip(1))

    assert torch.autograd.gradcheck(losses, tuple(values.values()))


def test_the_slope_along_a_random_direction() -> None:
    """The central difference quotient, against the gradient's component in that direction."""
    model, generator = fresh(SMALL), torch.Generator().manual_seed(3)
    tokens = torch.randint(11, (4, 6), generator=generator)
    weights = list(model.parameters())
    with torch.no_grad():
        for weight in weights:
            # So large that attention and GELU are far from linear.
            if weight.dim() > 1:
                weight.mul_(10)
    cross_entropy(model(tokens), tokens.flip(1)).sum().backward()
    direction = [torch.randn(w.shape, generator=generator, dtype=w.dtype) for w in weights]
    slope = sum(float((w.grad * d).sum()) for w, d in zip(weights, direction, strict=True))

    def at(step: float) -> float:
        with torch.no_grad():
            torch._foreach_add_(weights, direction, alpha=step)
            value = float(cross_entropy(model(tokens), tokens.flip(1)).sum())
            torch._foreach_add_(weights, direction, alpha=-step)
        return value

    assert (at(1e-5) - at(-1e-5)) / 2e-5 == pytest.approx(slope, rel=1e-6)


def test_what_makes_no_gpt_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"\b10\b.*\b4\b"):
        GPTConfig(vocabulary=3, context=3, layers=1, heads=4, width=10)
    with pytest.raises(ConfigurationError, match=r"layers.*\b1\b.*\b0\b"):
        GPTConfig(vocabulary=3, context=3, layers=0, heads=4, width=8)
    with pytest.raises(ConfigurationError, match=r"1m.*3m.*10m.*30m.*100m.*300m.*1b"):
        GPTConfig.of_size("2b")
    with pytest.raises(UsageError, match=r"\b7\b.*\b6\b"):
        fresh(SMALL)(torch.zeros(1, 7, dtype=torch.int64))
