"""Types of columns that mean the same on SQLite and PostgreSQL."""

from __future__ import annotations

import json
from typing import Any, Final

from sqlalchemy import JSON, BigInteger, Dialect, Integer, String, Text, TypeDecorator
from sqlalchemy.types import TypeEngine

LONG: Final[TypeEngine[int]] = BigInteger().with_variant(
    Integer, "sqlite"
)  # the one integer that SQLite counts up by itself


class PlainText(TypeDecorator[str]):
    """Text from anywhere: what PostgreSQL and UTF-8 cannot hold (NUL, lone surrogates) becomes U+FFFD and "?"."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """To the database."""
        return None if value is None else value.replace("\0", "\ufffd").encode(errors="replace").decode()


class JsonText(TypeDecorator[Any]):
    """JSON as text: PostgreSQL's own types refuse NaN and infinity, which metrics may be."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """To the database."""
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """From the database."""
        return None if value is None else json.loads(value)


JSON_TEXT: Final[TypeEngine[Any]] = JSON(none_as_null=True).with_variant(JsonText(), "postgresql")
