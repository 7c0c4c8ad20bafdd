"""The cost of modes: bytes as the kernel counts them, and seconds on another network."""
