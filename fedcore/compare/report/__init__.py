"""The report of a comparison: report.json, report.html, report.md, figures, and a table on the terminal."""

from fedcore.compare.report.document import Comparison, ModeTitle, SiteSplit, Source, machine
from fedcore.compare.report.merge import merge, read_reports
from fedcore.compare.report.terminal import terminal_table
from fedcore.compare.report.write import write_report

__all__ = [
    "Comparison",
    "ModeTitle",
    "SiteSplit",
    "Source",
    "machine",
    "merge",
    "read_reports",
    "terminal_table",
    "write_report",
]
