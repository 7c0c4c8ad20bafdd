"""The page at the server's own address: static files, which ask the server's routes for all that they show."""
