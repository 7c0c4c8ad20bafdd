"""Expect an error by its type and its attributes, since its sentence may change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class _Has:
    """What an error has to carry; printed by pytest where it carries something else."""

    attributes: dict[str, Any]

    def __call__(self, error: BaseException) -> bool:
        return {name: getattr(error, name, None) for name in self.attributes} == self.attributes


def raises(
    kind: type[BaseException] | tuple[type[BaseException], ...], *, match: str | None = None, **attributes: Any
) -> pytest.RaisesExc[BaseException]:
    """`pytest.raises` for an error that has these attributes: `raises(KitError, check="port-range")`.

    kind: the type or types of the error.
    match: a name or a number that its text must hold, never words of a sentence.
    attributes: what it carries: `check`, `key`, `status`, `kind`, `peer`, ...
    """
    return pytest.raises(kind, match=match, check=_Has(attributes))
