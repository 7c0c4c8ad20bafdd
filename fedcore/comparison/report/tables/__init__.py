"""Tables of a comparison as text, for the terminal and the documents of a report."""

from fedcore.comparison.report.tables.columns import caption, known_columns, loss_name, row_names
from fedcore.comparison.report.tables.further import (
    definition_rows,
    exposure_table,
    failure_table,
    loss_table,
    metrics_table,
    sites_table,
    sums_table,
)
from fedcore.comparison.report.tables.main import (
    TextTable,
    further_parts,
    has_words,
    main_table,
    meanings,
    overview,
    part_tables,
    pooled_bytes,
    pooling,
    word_columns,
)
from fedcore.comparison.report.tables.settings import settings_rows

__all__ = [
    "TextTable",
    "caption",
    "definition_rows",
    "exposure_table",
    "failure_table",
    "further_parts",
    "has_words",
    "known_columns",
    "loss_name",
    "loss_table",
    "main_table",
    "meanings",
    "metrics_table",
    "overview",
    "part_tables",
    "pooled_bytes",
    "pooling",
    "row_names",
    "settings_rows",
    "sites_table",
    "sums_table",
    "word_columns",
]
