"""Models of tables as ONNX programs."""
