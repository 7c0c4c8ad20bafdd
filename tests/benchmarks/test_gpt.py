"""The operations that the benchmark of the GPT counts."""

from benchmarks.gpt import flops_per_token
from fedcore.training.models import GPTConfig


def test_operations_per_token() -> None:
    # Six for each weight of the matrix products; 2 layers, width 4 and length 6 add 12 * 2 * 4 * 6 for attention.
    shape = GPTConfig(vocabulary=11, context=6, layers=2, heads=2, width=4)
    assert flops_per_token(shape, 6) == 6 * (2 * 12 * 4**2 + 11 * 4) + 12 * 2 * 4 * 6
