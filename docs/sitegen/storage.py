"""The reference of the server's database: its tables and columns, from the classes that describe them."""

from __future__ import annotations

from typing import Any

from server_app.storage.tables import JSON_TEXT, SCHEMA_VERSION, Base, PlainText
from sitegen.tables import code, explained, summary, table


def render() -> str:
    """A section for each table: what a row is, and its columns."""
    parts = [f"These are the tables of schema version {SCHEMA_VERSION}.\n"]
    for mapper in sorted(Base.registry.mappers, key=lambda mapper: mapper.local_table.name):
        said = explained(mapper.class_)
        rows = [
            (code(column.name), _type(column), _marks(column), said[column.name])
            for column in mapper.local_table.columns
        ]
        name = mapper.local_table.name
        parts.append(f"### {name}\n\n{summary(mapper.class_)}\n\n{table(('column', 'type', '', 'meaning'), rows)}")
    return "\n".join(parts)


def _type(column: Any) -> str:
    if isinstance(column.type, PlainText):
        return "text"
    if column.type is JSON_TEXT:
        return "JSON"
    return {"int": "integer", "float": "number"}.get(column.type.python_type.__name__, column.type.python_type.__name__)


def _marks(column: Any) -> str:
    """Whether it is part of the key, refers to another table, is unique or may be null."""
    marks = ["key"] if column.primary_key else []
    marks += [f"in {code(key.column.table.name)}" for key in column.foreign_keys]
    marks += ["unique"] if column.unique else []
    marks += ["may be null"] if column.nullable else []
    return ", ".join(marks)
