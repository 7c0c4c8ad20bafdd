"""A name leads to one class, and a folder can be read at a glance."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

from support.product import ROOT, modules

MOST_FILES: Final = 15


def test_a_class_name_stands_in_one_module() -> None:
    homes: defaultdict[str, set[Path]] = defaultdict(set)
    for module in modules():
        for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(module)
    double = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert not double, "\n".join(f"{name}: {', '.join(map(str, sorted(paths)))}" for name, paths in double.items())


def test_no_folder_has_more_files_than_a_screen_shows() -> None:
    counts = Counter(module.parent for module in modules())
    assert counts, "no module was looked at"
    large = {str(folder): count for folder, count in counts.items() if count > MOST_FILES}
    assert not large, f"more than {MOST_FILES} Python files, __init__.py counted: {large}"
