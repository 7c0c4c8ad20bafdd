"""HTTP: the ASGI application, what stands before its routes (who asks, how much, how fast), and the process."""
