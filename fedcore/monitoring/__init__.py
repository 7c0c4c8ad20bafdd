"""Record, progress, tables and trackers of a run."""
