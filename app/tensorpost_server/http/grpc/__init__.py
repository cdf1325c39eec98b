"""The Open Inference Protocol over gRPC: calls and messages of HTTP/2, read into inferences."""
