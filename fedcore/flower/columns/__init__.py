"""Questions about the columns of an app: its study plan."""
