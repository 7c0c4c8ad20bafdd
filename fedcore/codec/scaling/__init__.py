"""How large the scales of an exchange are: what sums tell of magnitudes, the rule, and what a server keeps of it."""
