"""What lies between an exchange and the server: the transport protocol, and HTTPS as its implementation."""
