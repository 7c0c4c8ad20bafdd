"""The report of a comparison: report.json, report.html, report.md, figures, and a table on the terminal."""

from fedcore.comparison.report.document import Comparison, MergedReport, ModeTitle, SiteSplit, machine
from fedcore.comparison.report.files import read_reports, write_report
from fedcore.comparison.report.forms.export import EXPORT_FOLDER, export, parse_export
from fedcore.comparison.report.forms.terminal import terminal_table
from fedcore.comparison.report.merging import merge, pool

__all__ = [
    "EXPORT_FOLDER",
    "Comparison",
    "MergedReport",
    "ModeTitle",
    "SiteSplit",
    "export",
    "machine",
    "merge",
    "parse_export",
    "pool",
    "read_reports",
    "terminal_table",
    "write_report",
]
