"""report.html: one file that needs nothing else, neither a script nor a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from fedcore.compare.report.document import Comparison
from fedcore.compare.report.drawing import PALETTE, Drawing, looks
from fedcore.compare.report.fairness import BY_NATURE, broken, fairness
from fedcore.compare.report.headline import headline
from fedcore.compare.report.summary import best_points, point_text
from fedcore.compare.report.tables import (
    CAPTION,
    SIMULATED,
    failure_rows,
    loss_rows,
    main_table,
    settings_rows,
    sites_table,
)

CURVES, SWEEPS = "curves", "sweeps"
_SECTIONS = {"split": "data", "sites": "data"}


def page(comparison: Comparison, drawings: Sequence[Drawing]) -> str:
    """The whole page. drawings: each appears in the section that its name belongs to."""
    environment = Environment(
        loader=PackageLoader("fedcore.compare.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    return environment.get_template("report.html.j2").render(**_context(comparison, drawings))


def _context(comparison: Comparison, drawings: Sequence[Drawing]) -> dict[str, Any]:
    checks = fairness(comparison)
    head, rows = main_table(comparison)
    styles = looks([mode.label for mode in comparison.modes])
    return {
        "comparison": comparison,
        "sentences": headline(comparison),
        "checks": checks,
        "broken": broken(checks),
        "by_nature": BY_NATURE,
        "head": head,
        "rows": rows,
        "caption": CAPTION + (f" {SIMULATED}" if comparison.simulated else ""),
        "colors": {label: f"var(--c{_color_index(look.color)})" for label, look in styles.items()},
        "dashes": {label: _dash(look.dash) for label, look in styles.items()},
        "palette": PALETTE,
        "chosen": {
            label: point_text(runs[0].point) for label, runs in best_points(comparison).items() if runs[0].point
        },
        "sections": _sections(drawings),
        "split": [(site.site, str(site.training), str(site.test)) for site in comparison.split],
        "sites": sites_table(comparison),
        "losses": loss_rows(comparison),
        "failures": failure_rows(comparison),
        "settings": settings_rows(comparison),
        "machines": [(source.name, source.created, source.machine) for source in comparison.sources]
        or [("", comparison.created, comparison.machine)],
    }


def _sections(drawings: Sequence[Drawing]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for drawing in drawings:
        section = _SECTIONS.get(drawing.name, drawing.name)
        if drawing.name.startswith(("accuracy-", "loss-")):
            section = CURVES
        elif drawing.name.startswith("sweep-"):
            section = SWEEPS
        # The drawing's own text is escaped by the library that draws it.
        found.setdefault(section, []).append({"drawing": drawing, "svg": Markup(drawing.svg())})  # noqa: S704
    return found


def _breakable(label: str) -> Markup:
    """A label that a narrow column may break between its options."""
    text = str(escape(label))
    return Markup(text.replace("[", "<wbr>[").replace(",", ",<wbr>").replace("=", "=<wbr>"))  # noqa: S704


def _color_index(color: str) -> int:
    return next(index for index, pair in enumerate(PALETTE) if pair[0] == color)


def _dash(dash: Any) -> str:
    """As `stroke-dasharray` has it."""
    return "none" if dash == "solid" else " ".join(str(1.6 * length) for length in dash[1])
