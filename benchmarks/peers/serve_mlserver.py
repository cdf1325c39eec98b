"""MLServer, Open Inference Protocol: JSON over HTTP, tensors' bytes over gRPC."""
# pyright: reportMissingImports=false
# Why: it runs in the product's own environment.

from __future__ import annotations

import asyncio
import sys

import numpy as np
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from .jobs import REPEATS

LARGEST = 1 << 30


class Tile(MLModel):
    """A model that tiles."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = NumpyCodec.decode_input(payload.inputs[0])
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", np.tile(x, REPEATS))])


if __name__ == "__main__":
    settings = Settings(
        host="127.0.0.1", http_port=int(sys.argv[1]), grpc_port=int(sys.argv[2]), metrics_endpoint=None,
        parallel_workers=0, debug=False, grpc_max_message_length=LARGEST,
    )  # fmt: skip
    asyncio.run(MLServer(settings).start([ModelSettings(name="tile", implementation=Tile)]))
