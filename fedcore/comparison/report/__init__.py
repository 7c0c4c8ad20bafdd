"""The report of a comparison: report.json, report.html, report.md, figures, and a table on the terminal."""

from fedcore.comparison.report.document import Comparison, MergedReport, ModeTitle, SiteSplit, machine, merge
from fedcore.comparison.report.files import read_reports, write_report
from fedcore.comparison.report.terminal import terminal_table

__all__ = [
    "Comparison",
    "MergedReport",
    "ModeTitle",
    "SiteSplit",
    "machine",
    "merge",
    "read_reports",
    "terminal_table",
    "write_report",
]
