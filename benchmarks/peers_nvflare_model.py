"""A torch module of any size, for FLARE's recipe with homomorphic encryption; FLARE ships this file with the job."""

import torch
from torch import nn

TENSORS = 10


class Model(nn.Module):
    """Normal values in ten tensors, `parameters` elements of float32 together."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.parameters_count = parameters
        generator = torch.Generator().manual_seed(0)
        parts = torch.randn(parameters, generator=generator).chunk(TENSORS)
        self.blocks = nn.ParameterList([nn.Parameter(part.clone()) for part in parts])
