"""Small models of published results: fully connected, convolutional for 28x28 grey images, and recurrent for text."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn


def logistic_regression(inputs: int, classes: int = 2) -> nn.Sequential:
    """One linear layer; for two classes a single logit (inputs + 1 parameters)."""
    outputs = 1 if classes == 2 else classes
    return nn.Sequential(OrderedDict(linear=nn.Linear(inputs, outputs)))


def mlp(inputs: int, hidden: Sequence[int], classes: int) -> nn.Sequential:
    """Fully connected layers with ReLU between them; the input is flattened."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    widths = [inputs, *hidden]
    for number, (before, after) in enumerate(itertools.pairwise(widths), start=1):
        layers[f"hidden{number}"] = nn.Linear(before, after)
        layers[f"relu{number}"] = nn.ReLU()
    layers["output"] = nn.Linear(widths[-1], classes)
    return nn.Sequential(layers)


def digits_mlp() -> nn.Sequential:
    """64-128-10 for scikit-learn's digits: 9,610 parameters."""
    return mlp(64, (128,), 10)


def mcmahan_2nn(classes: int = 10) -> nn.Sequential:
    """The "2NN" of McMahan et al. (2017), section 3: 784-200-200-10, 199,210 parameters."""
    return mlp(28 * 28, (200, 200), classes)


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


class CharLSTM(nn.Module):
    """Predicts, at every position of a text, the character that comes next.

    Input int64 [n, length], output logits [n, length, vocabulary]. The state starts at zero with every row.
    """

    def __init__(self, vocabulary: int, *, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        """Logits [n, length, vocabulary] of the character after each of `characters` [n, length]."""
        states, _ = self.lstm(self.embedding(characters))
        logits: Tensor = self.output(states)
        return logits


def char_lstm(vocabulary: int, *, embedding: int = 8, hidden: int = 256, layers: int = 2) -> CharLSTM:
    """The LSTM of McMahan et al. (2017), section 3: 798,720 + 265 vocabulary parameters.

    Characters become 8 numbers each, two layers of 256 units follow, then a softmax over the vocabulary. The paper
    does not state its vocabulary. Its 866,578 parameters are those of 258 symbols (the byte values and two more) and
    of cells with one bias a gate and peephole connections; torch's cells have two biases and no peepholes, which
    makes 867,090 for 258 symbols.
    """
    return CharLSTM(vocabulary, embedding=embedding, hidden=hidden, layers=layers)
