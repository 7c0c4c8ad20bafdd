"""ResNet-18 for small images, with a choice of normalisation.

Batch normalisation keeps running statistics of the data of one client, which an average over clients with other data
does not describe; group normalisation looks at one image at a time and has no such state.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedcore.errors import ConfigurationError

Norm: TypeAlias = Literal["group", "batch"]
_MakeNorm: TypeAlias = Callable[[int], nn.Module]
_STAGES = 4
_BLOCKS = 2


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and the shortcut around them (He et al. 2015, figure 5, left).

    [n, inputs, h, w] -> [n, outputs, h / stride, w / stride]. If the shape changes, the shortcut is a 1x1
    convolution (their option B).
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: _MakeNorm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                OrderedDict(conv=nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), norm=norm(outputs))
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, after the last ReLU."""
        residual = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(residual + self.shortcut(x))


def resnet18_groupnorm(
    classes: int, channels: int = 3, *, width: int = 64, norm: Norm = "group", groups: int = 2
) -> nn.Sequential:
    """ResNet-18 with GroupNorm for images of about 32x32: 11,173,962 parameters for ten classes.

    Input float [n, channels, height, width], output logits [n, classes]. The stem is one 3x3 convolution without
    pooling.

    Raises ConfigurationError. Source: He et al. (2015), arXiv 1512.03385; Hsieh et al. (2020), arXiv 1910.00189,
    section 5; Reddi et al. (2021), arXiv 2003.00295, appendix C.

    Args:
        width: channels of the first stage; it doubles from stage to stage.
        groups: of every GroupNorm; two as in the papers below.
        norm: "batch" puts BatchNorm in its place, for methods that keep it local (FedBN); its running statistics are
            buffers, so the number of parameters is the same.
    """
    make_norm = _norm(norm, groups, width)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, width, 3, padding=1, bias=False), norm1=make_norm(width), relu1=nn.ReLU()
    )
    inputs = width
    for stage in range(_STAGES):
        outputs = width << stage
        blocks = [BasicBlock(inputs, outputs, 1 if stage == 0 else 2, make_norm)]
        blocks += [BasicBlock(outputs, outputs, 1, make_norm) for _ in range(_BLOCKS - 1)]
        layers[f"stage{stage + 1}"] = nn.Sequential(*blocks)
        inputs = outputs
    layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "output": nn.Linear(inputs, classes)}
    model = nn.Sequential(layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def _norm(norm: str, groups: int, width: int) -> _MakeNorm:
    """Makes a normalisation layer for a number of channels."""
    if norm == "batch":
        return nn.BatchNorm2d
    if norm != "group":
        raise ConfigurationError(f"unknown normalisation {norm!r}: use group or batch")
    if groups < 1 or width % groups:
        raise ConfigurationError(f"{width} channels cannot be divided into {groups} groups")
    return partial(nn.GroupNorm, groups)
