"""The files of a report: report.json with its JSON Schema and reader, report.html, report.md, figures as PNG.

report.html is one file that needs nothing else, neither a script nor a network.

After a change of what report.json holds, from the repository's root:

    python -c "from fedcore.comparison.report.files import json_schema; print(json_schema(), end='')" > \
        fedcore/comparison/report/schema.json
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape
from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema, to_json

from fedcore.comparison.report.chance import ChanceLevel
from fedcore.comparison.report.curves import CURVES, curve_drawings, curve_table, sweep_drawings
from fedcore.comparison.report.details import detail_drawings
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.drawing import PALETTE, Drawing, looks
from fedcore.comparison.report.fairness import FairnessCheck, broken, fairness, machine_text
from fedcore.comparison.report.forms.markdown import markdown_table
from fedcore.comparison.report.sites import SITE_MEANS, site_means_table
from fedcore.comparison.report.story import headline
from fedcore.comparison.report.summary import Summary, best_points, point_text, summarize
from fedcore.comparison.report.tables import (
    caption,
    definition_rows,
    exposure_table,
    failure_table,
    further_parts,
    loss_table,
    meanings,
    metrics_table,
    overview,
    pooling,
    settings_rows,
    sites_table,
    sums_table,
    word_columns,
)
from fedcore.comparison.report.verdicts import Claim, claims_of
from fedcore.errors import ConfigurationError
from fedcore.system.files import write_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Comparison):
    """The content of report.json: the comparison, and what is computed from it.

    headline: sentences.
    chance: accuracies without learning; null if examples have no labels.
    claims: what the sentences rest on.
    """

    headline: tuple[str, ...]
    claims: tuple[Claim, ...] = ()
    summary: tuple[Summary, ...]
    fairness: tuple[FairnessCheck, ...]
    chance: ChanceLevel | None = None

    @classmethod
    def of(cls, comparison: Comparison) -> Report:
        """Compute the rest."""
        return cls(
            **_fields(comparison),
            headline=headline(comparison),
            claims=claims_of(comparison),
            summary=summarize(comparison),
            fairness=fairness(comparison),
            chance=ChanceLevel.of(comparison),
        )

    def to_json(self) -> str:
        """As text. A number that JSON lacks is written as its name, as protocol buffers do in JSON."""
        return to_json(self, indent=1, inf_nan_mode="strings").decode() + "\n"

    @staticmethod
    def read(text: str | bytes) -> Comparison:
        """Read the comparison back; raises ValidationError for another version of report.json."""
        return Comparison(**_fields(_REPORT.validate_json(text)))


_REPORT = TypeAdapter(Report)
_FIRST_SENTENCES: Final = 3
"""Above the table; the others follow below it."""
_UNIT: Final = re.compile(r"(?<=\d) (?=(%|[kMGT]?B|[mµ]?s|min|h|J|Wh)(?!\w))|(?<=±) ")
_OPTION: Final = re.compile(r"=|,(?!\d)")


def json_schema() -> str:
    """JSON Schema 2020-12 of report.json, made from the same dataclasses as the report itself."""
    schema = _REPORT.json_schema(mode="serialization", schema_generator=_Schema)
    for definition in (schema, *schema["$defs"].values()):
        definition.pop("description", None)
        definition.update(required=list(definition["properties"]), additionalProperties=False)
    head = {"$schema": _Schema.schema_dialect, "title": schema["properties"]["schema"]["const"]}
    return json.dumps({**schema, **head}, indent=1) + "\n"


class _Schema(GenerateJsonSchema):
    """Without titles that repeat the names; numbers may be the names of those that JSON lacks."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {"type": ["number", "string"], "pattern": "^(NaN|-?Infinity)$"}


def read_reports(paths: Sequence[Path]) -> dict[str, Comparison]:
    """Comparisons by the names of their files, or of their folders where the files are all called the same.

    Raises ConfigurationError for a file that is not a report, or is named twice.
    """
    for names in (
        [path.stem for path in paths],
        [path.absolute().parent.name for path in paths],
        [str(path) for path in paths],
    ):
        if len(set(names)) == len(names) > 0:
            return {name: _read(path) for name, path in zip(names, paths, strict=True)}
    raise ConfigurationError("--from: name each report once, at least one")


def _read(path: Path) -> Comparison:
    try:
        return Report.read(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"--from: {path}: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        what = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise ConfigurationError(
            f"--from: {path} is not a report.json of this version: {what}. Make it again, or merge it by the "
            "fedcore that wrote it",
            check="no-report",
        ) from None


def drawings_of(comparison: Comparison) -> list[Drawing]:
    """Every figure that has data, in the order of the report."""
    return [*curve_drawings(comparison), *sweep_drawings(comparison), *detail_drawings(comparison)]


def write_report(comparison: Comparison, out: Path) -> str:
    """Write report.json, report.html, report.md and figures/*.png below `out`; returns the content of report.json."""
    content, drawings = Report.of(comparison).to_json(), drawings_of(comparison)
    write_file(out / "report.json", content)
    write_file(out / "report.html", page(comparison, drawings))
    write_file(out / "report.md", _rendered("report.md.j2", comparison, drawings=drawings) + "\n")
    figures = out / "figures"
    figures.mkdir(exist_ok=True)
    for old in figures.glob("*.png"):
        old.unlink()
    for drawing in drawings:
        drawing.file(figures / f"{drawing.name}.png")
    return content


def page(comparison: Comparison, drawings: Sequence[Drawing]) -> str:
    """The whole page.

    Args:
        drawings: each goes into its section.
    """
    sections = _sections(drawings)
    # The first of the curves stands next to the table, without any there is the first figure of all.
    first = next((name for name in (CURVES, *sections) if sections.get(name)), "")
    figure = sections[first].pop(0) if first else None
    sections = {name: figures for name, figures in sections.items() if figures}
    return _rendered("report.html.j2", comparison, sections=sections, first=figure)


def _rendered(template: str, comparison: Comparison, **more: Any) -> str:
    environment = Environment(
        loader=PackageLoader("fedcore.comparison.report"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(breakable=_breakable, typeset=_typeset, markdown=markdown_table, words=word_columns)
    return environment.get_template(template).render(**_context(comparison), **more)


def _context(comparison: Comparison) -> dict[str, Any]:
    checks = fairness(comparison)
    settings, usual = settings_rows(comparison)
    styles = looks(comparison.labels)
    return {
        "comparison": comparison,
        "sentences": headline(comparison),
        "checks": checks,
        "check_rows": [(check.name, check.status, check.detail) for check in checks],
        "broken": broken(checks),
        "overview": overview(comparison),
        "parts": further_parts(comparison),
        "meanings": meanings(comparison),
        "pooling": pooling(comparison),
        "exposure": exposure_table(comparison),
        "FIRST": _FIRST_SENTENCES,
        "caption": caption(comparison),
        "colors": {label: f"var(--c{_color_index(look.color)})" for label, look in styles.items()},
        "dashes": {label: _dash(look.dash) for label, look in styles.items()},
        "palette": PALETTE,
        "chosen": {
            label: point_text(runs[0].point) for label, runs in best_points(comparison).items() if runs[0].point
        },
        "split": (
            ("site", "training examples", "test examples"),
            [(site.site, str(site.training), str(site.test)) for site in comparison.split],
        ),
        "sites": sites_table(comparison),
        "site_means": site_means_table(comparison),
        "site_means_caption": SITE_MEANS,
        "sums": sums_table(comparison),
        "metrics": metrics_table(comparison),
        "definitions": definition_rows(comparison),
        "losses": loss_table(comparison),
        "failures": failure_table(comparison),
        "settings": settings,
        "usual": usual,
        "curve_table": curve_table(comparison),
        "machines": [
            (getattr(one, "name", ""), one.created, machine_text(one.machine))
            for one in comparison.sources or (comparison,)
        ],
    }


def _sections(drawings: Sequence[Drawing]) -> dict[str, list[dict[str, Any]]]:
    sections: dict[str, list[dict[str, Any]]] = {}
    for drawing in drawings:
        # The drawing's own text is escaped by the library that draws it.
        sections.setdefault(drawing.section, []).append({"drawing": drawing, "svg": Markup(drawing.svg())})  # noqa: S704
    return sections


def _breakable(cell: str) -> Markup:
    """A cell that a narrow column may break between the options of a mode, but not within a quantity."""
    text = str(escape(_typeset(cell)))
    return Markup(_OPTION.sub(r"\g<0><wbr>", text).replace("[", "<wbr>["))  # noqa: S704


def _typeset(text: str) -> str:
    """Without a line's end between a number and its unit, or after ±."""
    return _UNIT.sub("\u00a0", text)


def _color_index(color: str) -> int:
    return next(index for index, pair in enumerate(PALETTE) if pair[0] == color)


def _dash(dash: Any) -> str:
    """In the form of SVG's `stroke-dasharray`."""
    return "none" if dash == "solid" else " ".join(str(1.6 * length) for length in dash[1])


def _fields(comparison: Comparison) -> dict[str, Any]:
    return {field.name: getattr(comparison, field.name) for field in fields(Comparison)}
