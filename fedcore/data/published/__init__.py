"""Published data sets that are read from files as their authors publish them."""
