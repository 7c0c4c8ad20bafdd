"""Display of results in a notebook: a small table, and curves, without anything from the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

from fedcore.errors import ConfigurationError, UnknownKey

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

_ROWS: Final = 12
"""Rows of a table that are shown; a longer one shows its last."""
# No colours of its own: text and lines are those of the page around it, light or dark.
_STYLE: Final = "border-collapse:collapse;font-variant-numeric:tabular-nums;text-align:right;color:inherit"
_CELL: Final = "padding:.2em .8em;border-bottom:1px solid rgba(128,128,128,.35)"


def html_table(title: str, frame: pandas.DataFrame, *, note: str = "") -> str:
    """A heading and the last rows of a table as HTML; every text is escaped."""
    rows = frame.tail(_ROWS)
    left_out = len(frame) - len(rows)
    head = "".join(f'<th scope="col" style="{_CELL}">{escape(str(name))}</th>' for name in _heads(frame))
    body = "".join(
        f'<tr><th scope="row" style="{_CELL}">{escape(_label(index))}</th>'
        + "".join(f'<td style="{_CELL}">{escape(cell(value))}</td>' for value in row)
        + "</tr>"
        for index, row in zip(rows.index, rows.itertuples(index=False), strict=True)
    )
    more = f"the last {len(rows)} of {len(frame)} rows; all of them are in .history" if left_out else ""
    notes = "".join(f"<div><small>{escape(text)}</small></div>" for text in (note, more) if text)
    return (
        f'<div class="fedcore-result"><div><strong>{escape(title)}</strong></div>'
        f'<div style="overflow-x:auto"><table style="{_STYLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        f"</table></div>{notes}</div>"
    )


def _heads(frame: pandas.DataFrame) -> list[str]:
    return [", ".join(str(name) for name in frame.index.names if name), *map(str, frame.columns)]


def _label(index: Any) -> str:
    return ", ".join(map(str, index)) if isinstance(index, tuple) else str(index)


def cell(value: Any) -> str:
    """A value for a person: four digits, and nothing if there is none."""
    if isinstance(value, list | tuple):
        return f"[{len(value)} values]"
    if value is None or value != value or str(value) == "<NA>":  # noqa: PLR0124 - NaN is not itself
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def metrics_line(metrics: Mapping[str, Any]) -> str:
    """Metrics in one line: `eval_acc 0.9123, eval_loss 0.3`."""
    return ", ".join(f"{name} {cell(value)}" for name, value in metrics.items())


def metrics_to_plot(frame: pandas.DataFrame, names: Sequence[str], facts: Sequence[str]) -> list[str]:
    """The columns to draw: those asked for; or accuracy, or else loss, or else the first metric.

    Raises UnknownKey and ConfigurationError.

    Args:
        facts: columns that are no metrics, drawn only if they are asked for.
    """
    from pandas.api.types import is_numeric_dtype

    numeric = [name for name in frame.columns if is_numeric_dtype(frame[name])]
    for name in names:
        if name not in numeric:
            raise UnknownKey(name, numeric, "the metrics to plot")
    if names:
        return list(names)
    metrics = [name for name in numeric if name not in facts and "round" not in name]
    if not metrics:
        raise ConfigurationError(
            "there is nothing to plot: no round reported a metric that is a number", check="nothing-to-plot"
        )
    for word in ("acc", "loss"):
        tested = [name for name in metrics if word in name.lower() and "train" not in name]
        if tested:
            return tested[:1]
    return metrics[:1]


def axes_or_new(ax: Axes | None) -> Axes:
    """The given axes, or those of a new figure, which a notebook shows by itself."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")[1]
