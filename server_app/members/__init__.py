"""Members: rosters, approved apps, sessions of people, who is online."""
