"""Encoding and masking on a GPU, with the same bits as on the processor."""
