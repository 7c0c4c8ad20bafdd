"""What the modes cost: bytes as the kernel counts them, and the seconds that they would take on another network."""
