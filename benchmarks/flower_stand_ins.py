"""Data of the shapes that Flower's examples load, made here: nothing is downloaded, and the examples do not change.

`install_stand_ins` replaces the functions that download: of `datasets`, of `transformers` and torchvision
(a small BERT and a small ViT with random weights) and of `evaluate`. Images are scikit-learn's digits, tables are
drawn.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

ROWS: Final = 40
"""Of each node."""
WORDS: Final = ("good", "bad", "film", "actor", "plot", "slow", "fine", "dull", "great", "poor")


def install_stand_ins(nodes: int) -> None:
    """For an example with so many nodes, in this process."""
    import datasets

    def load(path: str = "", *_: Any, split: str | None = None, **__: Any) -> Any:
        made = datasets.Dataset.from_dict(_columns(path, ROWS * nodes))
        whole = datasets.DatasetDict({"train": made, "test": made.select(range(ROWS))})
        return whole if split is None else whole[split]

    datasets.load_dataset = load
    datasets.load_from_disk = lambda path: (
        load(str(path), split="train").shard(nodes, int(Path(path).name)).train_test_split(test_size=0.2, seed=42)
    )
    _own_paths(nodes)
    _files(nodes)
    _small_bert()
    _small_vit()


def _columns(name: str, rows: int) -> dict[str, Any]:
    """The columns that an example reads of the data set of a name."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 10, rows)
    tables: dict[str, Callable[[], dict[str, Any]]] = {
        "cifar10": lambda: {"img": _images(labels, colours=True), "label": labels},
        "flowers": lambda: {"image": _images(labels, colours=True), "label": labels},
        "imdb": lambda: {"text": [" ".join(draw.choice(WORDS, 8)) for _ in range(rows)], "label": labels % 2},
        "scikit-learn/iris": lambda: _drawn(draw, rows, "SepalLengthCm", "SepalWidthCm", "PetalLengthCm"),
        "hitorilabs/iris": lambda: {
            **_drawn(draw, rows, "petal_length", "petal_width", "sepal_length", "sepal_width"),
            "species": labels % 3,
        },
        "adult-census": lambda: _census(draw, rows),
        "titanic": lambda: _passengers(draw, rows),
        "higgs": lambda: {"inputs": draw.normal(size=(rows, 28)), "label": (labels % 2).astype(float)},
    }
    for part, make in tables.items():
        if part in name:
            return make()
    return {"image": _images(labels, colours=False), "label": labels}


def _images(labels: Any, *, colours: bool) -> list[Any]:
    """Scikit-learn's digits, in the size of CIFAR-10 or of MNIST."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    pick = [int(np.flatnonzero(digits.target == label)[place % 100]) for place, label in enumerate(labels)]
    pictures = [Image.fromarray((digits.images[one] * 15).astype(np.uint8)) for one in pick]
    if colours:
        return [one.resize((32, 32)).convert("RGB") for one in pictures]
    return [one.resize((28, 28)) for one in pictures]


def _drawn(draw: np.random.Generator, rows: int, *names: str) -> dict[str, Any]:
    return {name: draw.uniform(2.0, 8.0, rows).round(1) for name in names}


def _census(draw: np.random.Generator, rows: int) -> dict[str, Any]:
    """Fourteen columns, eight of them words, and the income."""
    words = ("workclass", "education", "marital.status", "occupation", "relationship", "race", "sex", "native.country")
    numbers = ("age", "fnlwgt", "education.num", "capital.gain", "capital.loss", "hours.per.week")
    return {
        **{name: draw.integers(0, 90, rows) for name in numbers},
        **{name: draw.choice(["a", "b", "c"], rows).tolist() for name in words},
        "income": draw.choice(["<=50K", ">50K"], rows).tolist(),
    }


def _passengers(draw: np.random.Generator, rows: int) -> dict[str, Any]:
    return {
        "Survived": draw.integers(0, 2, rows),
        "Pclass": draw.integers(1, 4, rows),
        "Name": [f"{draw.choice(['Mr.', 'Mrs.', 'Miss.'])} Somebody {row}" for row in range(rows)],
        "Sex": draw.choice(["male", "female"], rows).tolist(),
        "Age": draw.uniform(1, 80, rows).round(),
        "Siblings/Spouses Aboard": draw.integers(0, 3, rows),
        "Parents/Children Aboard": draw.integers(0, 3, rows),
        "Fare": draw.uniform(5, 100, rows).round(2),
    }


def _own_paths(nodes: int) -> None:
    """Each node's config, which a real site's owner writes: where its data lie, and its database."""
    images = "cifar10/" if (Path.cwd() / "authexample").is_dir() else ""
    from fedcore.flower.node.config import NodeConfig, share_of_client
    from fedcore.simulation.workers import states

    def with_paths(client: int, clients: int) -> NodeConfig:
        share = share_of_client(client, clients)
        return NodeConfig({**share, "dataset-path": f"{images}{client - 1}", "db-url": f"sqlite:///{client - 1}.db"})

    setattr(states, "share_of_client", with_paths)  # noqa: B010 (the module does not export it)


def _files(nodes: int) -> None:
    """Pictures as MONAI's example unpacks them, and tables as the one on analytics reads them."""
    import pandas
    import sqlalchemy

    folder = Path.cwd()
    if (folder / "monaiexample").is_dir():
        labels = np.random.default_rng(0).integers(0, 6, ROWS * nodes)
        for place, (label, image) in enumerate(zip(labels, _images(labels, colours=False), strict=True)):
            (folder / "MedNIST" / str(label)).mkdir(parents=True, exist_ok=True)
            image.resize((64, 64)).save(folder / "MedNIST" / str(label) / f"{place}.png")
    if (folder / "federated_analytics").is_dir():
        names = ("age", "bmi", "systolic_bp", "diastolic_bp", "ldl_cholesterol", "hba1c")
        for node in range(nodes):
            table = pandas.DataFrame(_drawn(np.random.default_rng(node), ROWS, *names))
            engine = sqlalchemy.create_engine(f"sqlite:///{node}.db")
            table.to_sql("person_measurements", engine, index=False)
            engine.dispose()


def _small_bert() -> None:
    """For the example with Hugging Face's: its model and its tokenizer, with random weights."""
    if not (Path.cwd() / "huggingface_example").is_dir():
        return
    import transformers

    metrics: Any = importlib.import_module("evaluate")
    metrics.load = lambda *_, **__: Accuracy()
    vocabulary = Path.cwd() / "vocabulary.txt"
    vocabulary.write_text("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)), encoding="utf-8")
    small = transformers.BertConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    transformers.AutoTokenizer.from_pretrained = lambda *_, **__: transformers.BertTokenizerFast(str(vocabulary))
    transformers.AutoModelForSequenceClassification.from_pretrained = lambda *_, **__: (
        transformers.BertForSequenceClassification(small)
    )


class Accuracy:
    """The metric of that name in `evaluate`, whose own is a script to download."""

    def __init__(self) -> None:
        self.right: list[bool] = []

    def add_batch(self, *, predictions: Any, references: Any) -> None:
        """Compare a batch's predictions with its labels."""
        self.right.extend((predictions == references).tolist())

    def compute(self) -> dict[str, float]:
        """Of all batches so far."""
        return {"accuracy": sum(self.right) / len(self.right)}


def _small_vit() -> None:
    """For the example with torchvision's: of one layer."""
    if not (Path.cwd() / "vitexample").is_dir():
        return
    models: Any = importlib.import_module("torchvision.models")
    models.vit_b_16 = lambda **_: models.VisionTransformer(
        image_size=224, patch_size=32, num_layers=1, num_heads=2, hidden_dim=32, mlp_dim=64
    )
