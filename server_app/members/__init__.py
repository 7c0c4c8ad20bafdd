"""Members and people: rosters, approved apps, presence and work of clients, login sessions."""
