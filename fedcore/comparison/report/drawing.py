"""The style of all figures: one colour, dash and marker for each mode, labels next to lines, light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from xml.sax.saxutils import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

# Okabe and Ito's colours (Color Universal Design, 2008) without black and yellow, each with a lighter one for a dark
# page. The SVG names them as CSS variables, so that one drawing serves both.
PALETTE = (
    ("#0072b2", "#5ab4ea"),
    ("#d55e00", "#ff8b45"),
    ("#009e73", "#33cba0"),
    ("#cc79a7", "#eba6ca"),
    ("#b87f00", "#f2b632"),
    ("#3a9fd8", "#9ad7fb"),
    ("#5f5f5f", "#c6c6c6"),
)
INK, MUTED, GRID = "#1c1e21", "#5c6066", "#dcdfe3"
VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", **{pair[0]: f"--c{i}" for i, pair in enumerate(PALETTE)}}
_DASHES: tuple[Any, ...] = ("solid", (0, (4, 1.6)), (0, (1.2, 1.4)))
_MARKERS = "osD^vPX*<>hd"
# On a phone a figure is as wide as the screen: about one CSS pixel for each of its points.
WIDTH = 4.5
NOTE = 0.16
"""Inches for a line below a figure."""
_FONT = 9.0
_LABEL_WORDS = 17
_STYLE: dict[str, Any] = {
    "font.size": _FONT,
    "axes.labelsize": _FONT,
    "xtick.labelsize": _FONT - 1,
    "ytick.labelsize": _FONT - 1,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "grid.color": GRID,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "svg.fonttype": "none",
}

# A place to point at is at least this wide and high, and so many of one line have values: a curve may have thousands.
_CELL, MOST_CELLS = 10.0, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Hover:
    """A place of a figure that says its values when somebody points at it.

    x, y: from and to, in data coordinates.
    """

    axes: Axes
    x: tuple[float, float]
    y: tuple[float, float]
    text: str

    @classmethod
    def at(cls, axes: Axes, x: float, y: float, text: str) -> Hover:
        """One point."""
        return cls(axes=axes, x=(x, x), y=(y, y), text=text)

    def svg(self, width: float, height: float) -> str:
        """As an element of a drawing of this size, in points; the page's style sheet hides the text."""
        self.axes.get_xlim(), self.axes.get_ylim()  # which settles them
        corners = self.axes.transData.transform(list(zip(self.x, self.y, strict=True))) * 72 / self._dpi
        (x0, y0), (x1, y1) = ((x, height - y) for x, y in corners)
        left, top = min(x0, x1), min(y0, y1)
        wide, high = max(abs(x1 - x0), _CELL), max(abs(y1 - y0), _CELL)
        left, top = left - (wide - abs(x1 - x0)) / 2, top - (high - abs(y1 - y0)) / 2
        middle = left + wide / 2
        anchor = "start" if middle < width / 3 else "end" if middle > 0.6 * width else "middle"
        return (
            f'<g class="hover"><rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="3"/>'
            f'<text x="{middle:.1f}" y="{max(top - 3, 8):.1f}" text-anchor="{anchor}">{escape(self.text)}</text></g>'
        )

    @property
    def _dpi(self) -> float:
        figure = self.axes.get_figure(root=True)
        return 100.0 if figure is None else figure.dpi


Draw: TypeAlias = Callable[[Figure], Sequence[Hover]]
"""Draws, and says which places have values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How one mode is drawn, the same in every figure."""

    color: str
    dash: Any
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of Axes.plot."""
        return {"color": self.color, "linestyle": self.dash, "marker": self.marker}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure of the report.

    name: of its file.
    section: of the page.
    caption: how to read it.
    height: in inches.
    """

    name: str
    section: str
    title: str
    caption: str
    height: float
    draw: Draw

    def svg(self) -> str:
        """For a page: colours as CSS variables, text as text, unique ids, no reference to anything outside."""
        buffer = io.StringIO()
        with _figure(self) as (figure, hovers):
            figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
            places = "".join(hover.svg(72 * WIDTH, 72 * self.height) for hover in hovers)
        return _for_page(buffer.getvalue(), self).replace("</svg>", f"{places}</svg>")

    def file(self, path: Path) -> None:
        """Write it for other documents, on white, in the format of the file's name."""
        dates = {"Date": None} if path.suffix == ".svg" else None
        with _figure(self) as (figure, _):
            figure.savefig(path, dpi=200, facecolor="white", metadata=dates)


def file_name(text: str) -> str:
    """Text that a user chose, as part of a file's name or of an id."""
    return "".join(sign if sign.isalnum() else "-" for sign in text)


def titled(name: str) -> str:
    """A metric at the beginning of a title; names that are no words stay as they are."""
    return name.capitalize() if name.isalpha() and name.islower() else name


def looks(labels: Sequence[str]) -> Mapping[str, Look]:
    """By label, in the order of the modes; other dashes begin where the colours run out."""
    return {
        label: Look(
            color=PALETTE[index % len(PALETTE)][0],
            dash=_DASHES[index // len(PALETTE) % len(_DASHES)],
            marker=_MARKERS[index % len(_MARKERS)],
        )
        for index, label in enumerate(labels)
    }


def short(label: str) -> str:
    """A label for a margin: the options on a line of their own, cut where they are long."""
    name, bracket, rest = label.partition("[")
    if not bracket or len(label) <= _LABEL_WORDS:
        return label
    options = rest.removesuffix("]")
    return f"{name}\n{options if len(options) <= _LABEL_WORDS else options[: _LABEL_WORDS - 1] + '…'}"


def label_lines(
    figure: Figure, axes: Axes, ends: Mapping[str, float], styles: Mapping[str, Look], form: Callable[[float], str]
) -> None:
    """Names at the right edge, each at the height where its line ends, or as near as the others leave room.

    An arrow says that a line ends below or above the axis.

    Args:
        ends: last value of each line, in data coordinates of the y axis; it stands before the name as `form` writes it.
    """
    low, high = axes.get_ylim()
    order = sorted(ends, key=lambda label: ends[label])
    heights = [(ends[label] - low) / (high - low) for label in order]
    inches = axes.get_window_extent().height / figure.dpi
    line = _FONT / 72 / inches
    sizes = [line * (2.3 if "\n" in short(label) else 1.2) for label in order]
    edge = axes.get_yaxis_transform()
    for label, value, position in zip(order, heights, spread_out(heights, sizes), strict=True):
        look, height = styles[label], low + position * (high - low)
        start = low + min(max(value, 0.0), 1.0) * (high - low)
        inside: dict[str, Any] = {"transform": edge, "clip_on": False, "color": look.color}
        axes.plot([1.005, 1.04], [start, height], linewidth=0.6, alpha=0.7, **inside)
        axes.plot([1.045, 1.125], [height] * 2, linestyle=look.dash, **inside)
        axes.plot([1.085], [height], look.marker, **inside)
        arrow = "↓ " if value < 0 else "↑ " if value > 1 else ""
        text = f"{arrow}{form(ends[label])}  {short(label)}"
        axes.text(1.145, height, text, transform=edge, fontsize=_FONT - 1, va="center")
    axes.set_ylim(low, high)


def write_notes(figure: Figure, notes: Sequence[str], left: float) -> float:
    """Write lines below everything else; returns the share of the figure's height that they take.

    Args:
        left: where they begin, as a share of its width.
    """
    height = figure.get_figheight()
    for number, note in enumerate(notes, start=1):
        figure.text(left, (len(notes) - number + 0.3) * NOTE / height, note, fontsize=7, color=MUTED)
    return NOTE * len(notes) / height


def spread_out(places: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Move ascending places apart until none overlap, each as high as `sizes` says; from 0 to 1 if they fit."""
    moved: list[float] = []
    edge = 0.0
    for position, height in zip(places, sizes, strict=True):
        moved.append(max(position, edge + height / 2))
        edge = moved[-1] + height / 2
    edge = max(1.0, sum(sizes))
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], edge - sizes[index] / 2)
        edge = moved[index] - sizes[index] / 2
    return moved


def percent_axis(axes: Axes, which: str = "y") -> None:
    """Label an axis of fractions in percent."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))


def format_axis(axes: Axes, form: Callable[[float], str]) -> None:
    """Label the x axis as `form` writes numbers."""
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: form(value).replace(".0 ", " ") if value else "0"))


@contextmanager
def _figure(drawing: Drawing) -> Iterator[tuple[Figure, Sequence[Hover]]]:
    style: dict[Any, Any] = {**_STYLE, "svg.hashsalt": drawing.name}
    with mpl.rc_context(style):
        figure = Figure(figsize=(WIDTH, drawing.height))
        yield figure, drawing.draw(figure)


def _for_page(svg: str, drawing: Drawing) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s(?:xmlns(?::\w+)?|version|width|height)="[^"]*"(?=[^<]*viewBox)', "", svg, count=0)
    svg = re.sub(r'\sxmlns(?::\w+)?="[^"]*"', "", svg).replace("xlink:href=", "href=")
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{drawing.name}-", svg)
    # The page chooses the family; `font` would set it too.
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    return svg.replace("<svg", f'<svg role="img" aria-labelledby="{drawing.name}-title"', 1)
