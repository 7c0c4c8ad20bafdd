"""A torch module of any size, for FLARE's recipe with homomorphic encryption; FLARE ships this file with the job."""

import torch
from torch import nn

TENSORS = 10


class Model(nn.Module):
    """Normal values in ten tensors, `size` elements of float32 together; FLARE makes it again from its `size`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        generator = torch.Generator().manual_seed(0)
        parts = torch.randn(size, generator=generator).chunk(TENSORS)
        self.blocks = nn.ParameterList([nn.Parameter(part.clone()) for part in parts])
