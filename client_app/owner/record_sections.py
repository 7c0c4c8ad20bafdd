"""The record of processing and the outline of an assessment, as sections of the owner's document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from client_app.output import clean
from client_app.owner.processing import ASSESSMENT, ITEMS, OPEN, PROCESSING_FILE, Item
from client_app.owner.sections import StatusSection, Table
from fedcore.data.tables import TableColumn, TableSchema

_HEADINGS: Final = ("item", "article of the GDPR", "entry")


def processing_sections(
    filled: Mapping[str, str], schema: TableSchema | None, *, security: str, reveals: str
) -> Iterator[StatusSection]:
    """The record of processing, the columns, and the outline of an assessment.

    Args:
        filled: what `read_processing` gave.
        schema: what `schema_of` gave.
        security: how the data are protected here, in a sentence.
        reveals: what sums and models tell, in a sentence.
    """
    rows = [*_rows(ITEMS, filled), ("security measures", "30(1)(g)", security)]
    yield StatusSection(
        name="record",
        title="Record of processing",
        text=(_state_of(rows),),
        table=Table(headings=_HEADINGS, rows=tuple(rows)),
    )
    if schema is not None:
        yield StatusSection(
            name="columns",
            title="Columns that are used",
            text=(
                "They are read from this site's own file, other columns are not, and no value of a row leaves this "
                "machine. Means and standard deviations are those of all sites together, from masked sums in which a "
                "number counts as the nearest of its bounds; a missing value counts as the mean.",
            ),
            table=Table(
                headings=("column", "kind", "what is made of it"),
                rows=(*((clean(one.name), one.kind, _made_of(one)) for one in schema.columns), _target(schema)),
            ),
        )
    described = (
        "description",
        "35(7)(a)",
        "this document: what is processed, why, by which rules, what left the machine",
    )
    measures = ("measures", "35(7)(d)", f"{security}; the owner's rules below, and the signed records of each sum")
    revelation = ("what sums and models reveal", "35(7)(c)", reveals)
    yield StatusSection(
        name="assessment",
        title="Outline of a data protection impact assessment",
        text=("Art. 35 asks for one where a high risk is likely, as with health data on a large scale.",),
        table=Table(headings=_HEADINGS, rows=(described, *_rows(ASSESSMENT, filled), revelation, measures)),
    )


def _rows(items: tuple[Item, ...], filled: Mapping[str, str]) -> list[tuple[str, str, str]]:
    return [(item.title, item.article, filled.get(item.key, OPEN)) for item in items]


def _state_of(rows: list[tuple[str, str, str]]) -> str:
    missing = sum(entry == OPEN for _, _, entry in rows)
    return (
        f"{missing} of {len(rows)} entries are not filled in: write them into {PROCESSING_FILE} of the kit, which "
        "fedcore client status --form makes, and export this document again."
        if missing
        else f"The entries are those of {PROCESSING_FILE} of the kit."
    )


def _made_of(column: TableColumn) -> str:
    match column.kind:
        case "number":
            return f"its distance from the mean, in standard deviations; bounds {column.low:g} and {column.high:g}"
        case "boolean":
            return "yes or no, as 1 or 0; its distance from the mean, in standard deviations"
    return f"a yes or no for each of {', '.join(map(clean, column.categories))}"


def _target(schema: TableSchema) -> tuple[str, str, str]:
    """The row of what is predicted."""
    if schema.classes:
        return (
            clean(schema.target),
            "target",
            f"what the model learns to predict: {', '.join(map(clean, schema.classes))}",
        )
    bounds = f"bounds {schema.target_low:g} and {schema.target_high:g}"
    return clean(schema.target), "target", f"the number that the model learns to predict; {bounds}"
