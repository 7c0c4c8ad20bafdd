"""One seed for all tests of training."""

import pytest
import torch


@pytest.fixture(autouse=True)
def drawn_from_one_seed():
    """Whatever order tests run in, each draws the same numbers: a rare draw fails always or never."""
    torch.manual_seed(0)
