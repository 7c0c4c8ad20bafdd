"""The exchanges of a run: cohorts, and secure, grouped, buffered and plain exchanges."""
