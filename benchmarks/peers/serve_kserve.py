"""KServe's Python model server, Open Inference Protocol with binary tensors both ways."""
# pyright: reportMissingImports=false
# Why: it runs in the product's own environment.

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer

from .jobs import REPEATS


class Tile(Model):
    """A model that tiles."""

    def __init__(self) -> None:
        super().__init__("tile")
        self.ready = True

    def predict(self, payload: InferRequest, headers: Any = None, response_headers: Any = None) -> InferResponse:
        y = np.tile(payload.inputs[0].as_numpy(), REPEATS)
        output = InferOutput(name="y", shape=list(y.shape), datatype="FP32")
        output.set_data_from_numpy(y, binary_data=True)
        return InferResponse(
            response_id=payload.id or "1",
            model_name=self.name,
            infer_outputs=[output],
            use_binary_outputs=True,
            requested_outputs=payload.request_outputs,
        )


if __name__ == "__main__":
    server = ModelServer(http_port=int(sys.argv[1]), workers=1, enable_grpc=False, access_log_format=None)
    server.start([Tile()])
