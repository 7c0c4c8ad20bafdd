"""Convolutional models for 28x28 grey images, [n, height, width] or [n, 1, height, width]."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn


class GreyImages(nn.Module):
    """[n, height, width] or [n, 1, height, width] -> [n, 1, height, width]."""

    def forward(self, images: Tensor) -> Tensor:
        return images.unsqueeze(1) if images.dim() == 3 else images


def mcmahan_cnn(classes: int = 10) -> nn.Sequential:
    """The MNIST CNN of McMahan et al. (2017), section 3: 1,663,370 parameters for ten classes.

    Two 5x5 convolutions (32 and 64 channels), each with ReLU and 2x2 max pooling, then 512 units.
    The paper's count holds with the padding that keeps 28x28 at 28x28.
    """
    return nn.Sequential(
        OrderedDict(
            image=GreyImages(),
            conv1=nn.Conv2d(1, 32, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, 5, padding=2),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            hidden=nn.Linear(64 * 7 * 7, 512),
            relu3=nn.ReLU(),
            output=nn.Linear(512, classes),
        )
    )


def lenet(classes: int = 10) -> nn.Sequential:
    """The small CNN of Flower's niid_bench for 28x28 images: 44,426 parameters for ten classes.

    LeNet-5 (LeCun et al. 1998) without padding, with ReLU and max pooling.
    """
    return nn.Sequential(
        OrderedDict(
            image=GreyImages(),
            conv1=nn.Conv2d(1, 6, 5),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            hidden1=nn.Linear(16 * 4 * 4, 120),
            relu3=nn.ReLU(),
            hidden2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
            output=nn.Linear(84, classes),
        )
    )


def small_cnn(classes: int = 62) -> nn.Sequential:
    """A CNN of 22,974 parameters for 62 classes: differential privacy costs accuracy by the square root of that.

    Two convolutions (16 and 32 channels) with ReLU and max pooling, then one linear layer.
    """
    return nn.Sequential(
        OrderedDict(
            image=GreyImages(),
            conv1=nn.Conv2d(1, 16, 5, stride=2, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(16, 32, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            output=nn.Linear(32 * 3 * 3, classes),
        )
    )
