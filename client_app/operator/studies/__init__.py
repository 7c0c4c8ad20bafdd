"""A study: the questions of an app's plan in one report."""
