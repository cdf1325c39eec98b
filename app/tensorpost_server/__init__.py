"""The tensorpost service: DirectML and ONNX operators over HTTP. `tensorpost_server.main:create_app` builds it."""
