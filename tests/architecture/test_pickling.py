"""What a pickle says is run by whoever reads it: the code has no use of one but those of a table in the documents."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("fedcore", "server_app", "client_app")
PICKLES = (
    *("pickle", "_pickle", "pickletools", "marshal", "shelve", "copyreg", "dill", "cloudpickle", "joblib"),
    *("multiprocessing", "multiprocess", "torch.multiprocessing", "concurrent.futures.ProcessPoolExecutor"),
    *("concurrent.futures.process", "ray", "torch.save", "torch.load", "torch.serialization", "torch.jit", "torch.hub"),
    *("torch.compile", "torch.export.save", "torch.export.load", "torch.package", "torch.utils.data.DataLoader"),
    *("torch.utils.data.dataloader", "torch.distributed.checkpoint", "torch.distributed.rpc"),
    *("torch.distributed.run", "torch.distributed.launcher", "torch.distributed.elastic", "pandas.read_pickle"),
    *(f"torch.distributed.{name}_object" for name in ("all_gather", "gather")),
    *(f"torch.distributed.{name}_object_list" for name in ("broadcast", "scatter", "send", "recv")),
)
"""Modules and functions, with all below them, that pickle what they are given or unpickle what they read."""
METHODS = frozenset({"read_pickle", "to_pickle", "send_pyobj", "recv_pyobj"})
"""The same of objects whose type the code does not show."""


def uses(code: str) -> Iterator[str]:
    """What of `PICKLES` a module imports or names, as an import, an attribute, or a program that it starts."""
    tree = ast.parse(code)
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                known[name.asname or name.name.partition(".")[0]] = (
                    name.name if name.asname else name.name.partition(".")[0]
                )
                yield from _pickling(name.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                known[name.asname or name.name] = full = f"{node.module}.{name.name}"
                yield from _pickling(full)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr in METHODS:
                yield node.attr
            first, _, rest = ast.unparse(node).partition(".")
            yield from _pickling(f"{known.get(first, first)}.{rest}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _pickling(node.value) if node.value != "ray" else ()  # also a word of ours: --engine ray
        elif isinstance(node, ast.keyword) and node.arg in {"allow_pickle", "weights_only"}:
            safe = node.arg == "weights_only"
            if not (isinstance(node.value, ast.Constant) and node.value.value is safe):
                yield node.arg


def _pickling(name: str) -> Iterator[str]:
    yield from (one for one in PICKLES if name == one or name.startswith(f"{one}."))


def table() -> set[str]:
    """The modules that the documents name, with what is pickled and who reads it."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("### What is pickled\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([\w/]+\.py)` \| [^|]{10,} \| [^|]{10,} \|$", section, re.MULTILINE))


def test_only_what_the_table_names_pickles() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): set(uses(path.read_text(encoding="utf-8"))) for path in files}
    assert {path: names for path, names in found.items() if names and path not in table()} == {}
    assert {path for path in table() if not found.get(path)} == set(), "these pickle nothing any more"


def test_nothing_that_meets_another_party_is_in_the_table() -> None:
    """The server, a client's agent, the protocol, and what reads models and messages."""
    assert table()
    meets = ("server_app/", "fedcore/secagg", "fedcore/federation", "fedcore/codec", "fedcore/state", "fedcore/flower")
    assert [path for path in table() if path.startswith(meets) or path.count("/") < 2] == []
    # torchrun's own, between the machines of one client.
    assert [path for path in table() if path.startswith("client_app/")] == ["client_app/ranks/launcher.py"]


@pytest.mark.parametrize(
    ("code", "used"),
    [
        ("import pickle", {"pickle"}),
        ("import pickle as p", {"pickle"}),
        ("def f():\n    from multiprocessing.connection import Client", {"multiprocessing"}),
        ("import torch as t\nt.load(path)", {"torch.load"}),
        ("from torch.utils import data\ndata.DataLoader(rows)", {"torch.utils.data.DataLoader"}),
        (
            "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()",
            {"concurrent.futures.ProcessPoolExecutor"},
        ),
        ("import torch.distributed as dist\ndist.all_gather_object(a, b)", {"torch.distributed.all_gather_object"}),
        ("importlib.import_module('pickle')", {"pickle"}),
        ("np.load(file, allow_pickle=True)", {"allow_pickle"}),
        (
            "from concurrent.futures import ThreadPoolExecutor\nimport numpy as np\nnp.load(f, allow_pickle=False)",
            set(),
        ),
    ],
)
def test_a_use_is_seen(code: str, used: set[str]) -> None:
    assert set(uses(code)) == used
