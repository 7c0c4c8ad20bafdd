"""Import statements in the order that formatters want them: the standard library, others, the app's own."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable


def import_block(statements: Iterable[str], package: str) -> str:
    """The statements once each, merged by module, with the blank lines between groups."""
    plain: set[tuple[str, str]] = set()
    named: dict[str, set[tuple[str, str]]] = {}
    for statement in statements:
        node = ast.parse(statement).body[0]
        if isinstance(node, ast.Import):
            plain |= {(alias.name, alias.asname or "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            named.setdefault(module, set()).update((alias.name, alias.asname or "") for alias in node.names)
    groups: list[list[str]] = [[], [], []]
    for name, alias in sorted(plain, key=lambda one: one[0].lower()):
        groups[_group(name, package)].append(f"import {_as(name, alias)}")
    for module in sorted(named, key=str.lower):
        members = ", ".join(_as(*one) for one in sorted(named[module], key=lambda one: _rank(one[0])))
        groups[_group(module, package)].append(f"from {module} import {members}")
    return "\n\n".join("\n".join(group) for group in groups if group) + "\n"


def _group(module: str, package: str) -> int:
    top = module.partition(".")[0]
    return 0 if top in sys.stdlib_module_names else 2 if top == package or not top else 1


def _as(name: str, alias: str) -> str:
    return f"{name} as {alias}" if alias else name


def _rank(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2), name
