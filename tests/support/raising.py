"""Expect an error by its type and its attributes, since its sentence may change."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class _Has:
    """What an error has to carry; printed by pytest where it carries something else."""

    attributes: dict[str, Any]
    numbers: tuple[str, ...]

    def __call__(self, error: BaseException) -> bool:
        in_text = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)", str(error))
        has = {name: getattr(error, name, None) for name in self.attributes}
        return has == self.attributes and Counter(self.numbers) <= Counter(in_text)


def raises(
    error: type[BaseException] | tuple[type[BaseException], ...],
    /,
    *,
    match: str | None = None,
    numbers: Collection[float] = (),
    **attributes: Any,
) -> pytest.RaisesExc[BaseException]:
    """`pytest.raises` for an error that has these attributes: `raises(KitError, check="port-range")`.

    error: its type or types.
    match: a name that its text must hold, never words of a sentence.
    numbers: what its text must hold besides, in any order.
    attributes: what it carries: `check`, `key`, `status`, `kind`, `peer`, ...
    """
    return pytest.raises(error, match=match, check=_Has(attributes, tuple(map(str, numbers))))
