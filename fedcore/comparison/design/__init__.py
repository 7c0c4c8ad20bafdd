"""The design of a comparison: which budget is equal, how each mode is tuned, how many seeds there are."""
