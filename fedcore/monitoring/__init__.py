"""What people see of a run: its record, progress, tables, and the trackers that it is sent to."""
