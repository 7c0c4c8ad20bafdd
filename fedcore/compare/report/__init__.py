"""The report of a comparison: report.json, report.html, report.md, figures, and a table on the terminal."""

from fedcore.compare.report.document import Comparison, ModeTitle, SiteSplit, Source, machine

__all__ = ["Comparison", "ModeTitle", "SiteSplit", "Source", "machine"]
