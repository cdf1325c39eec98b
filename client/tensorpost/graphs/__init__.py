"""Graphs as people write them: JSON with inputs, nodes in DirectML's or ONNX's words, and outputs by name."""
