"""Forms of a report next to its page: on a terminal, and for a paper."""
