"""Data sets, and the ways to divide them among clients. NumPy only; no loader ever unpickles.

Federated data differ from client to client, and how they differ decides how hard learning is. `partition` divides a
data set by the rules that papers compare on: evenly (iid), by labels drawn from a Dirichlet distribution, by shards of
one label each, with so many labels a client, in unequal sizes (`skews`), by the owners that the data come with, or by
Flower's own (`flower_partitioners`). It is a pure function of the seed. The training and the test
half are divided by one rule, so that each client is tested on data like its own, and the parts of a half are disjoint
and cover it.

A data file is known by its SHA-256. The bytes that are checked are the bytes that are parsed, so nothing can change
in between. A loader returns plain arrays with a fixed test half, whatever the seed of a run.
"""

from fedcore.data.image_folder import load_image, load_image_folder
from fedcore.data.images import load_cifar10, load_digits, load_fashion_mnist, load_femnist, load_mnist
from fedcore.data.partition import ClientRows, client_data, partition
from fedcore.data.published.heart import load_heart_disease, read_hospital
from fedcore.data.published.shakespeare import load_shakespeare
from fedcore.data.synthetic import load_synthetic
from fedcore.data.tables import TableColumn, TableSchema, table_data
from fedcore.data.types import Dataset, Split

__all__ = [
    "ClientRows",
    "Dataset",
    "Split",
    "TableColumn",
    "TableSchema",
    "client_data",
    "load_cifar10",
    "load_digits",
    "load_fashion_mnist",
    "load_femnist",
    "load_heart_disease",
    "load_image",
    "load_image_folder",
    "load_mnist",
    "load_shakespeare",
    "load_synthetic",
    "partition",
    "read_hospital",
    "table_data",
]
