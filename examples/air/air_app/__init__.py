"""A Flower app: fine dust at twelve stations, with missing values filled in by the federation's means."""
