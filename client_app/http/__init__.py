"""Transport to the server: a protocol, and HTTPS as its implementation."""
