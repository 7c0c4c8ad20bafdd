"""Data sets and the ways to divide them among clients. NumPy only; no loader ever unpickles."""

from fedcore.data.heart import load_heart_disease
from fedcore.data.images import load_cifar10, load_digits, load_fashion_mnist, load_femnist, load_mnist
from fedcore.data.partition import ClientRows, client_data, partition
from fedcore.data.shakespeare import load_shakespeare
from fedcore.data.types import Dataset, Split

__all__ = [
    "ClientRows",
    "Dataset",
    "Split",
    "client_data",
    "load_cifar10",
    "load_digits",
    "load_fashion_mnist",
    "load_femnist",
    "load_heart_disease",
    "load_mnist",
    "load_shakespeare",
    "partition",
]
