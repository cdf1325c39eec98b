"""LitServe. It passes JSON or a form to its worker, so the tensor travels in base64."""
# pyright: reportMissingImports=false
# Why: it runs in the product's own environment.

import base64
import sys
from typing import Any

import litserve
import numpy as np

from .jobs import REPEATS


class Tile(litserve.LitAPI):
    """A model that tiles."""

    def setup(self, device: str) -> None:
        """Nothing to load."""

    def decode_request(self, request) -> Any:  # a type here would be taken for the body's
        return np.frombuffer(base64.b64decode(request["x"]), np.float32).reshape(request["shape"])

    def predict(self, x: Any) -> Any:
        return np.tile(x, REPEATS)

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"shape": output.shape, "y": base64.b64encode(output).decode()}


if __name__ == "__main__":
    server = litserve.LitServer(Tile(), accelerator="cpu", workers_per_device=1, timeout=300)
    server.run(port=int(sys.argv[1]), host="127.0.0.1", log_level="warning", generate_client_file=False)
