"""HTTP: the ASGI application, authentication and limits in front of its routes, and the server process."""
