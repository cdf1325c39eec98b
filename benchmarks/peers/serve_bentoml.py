"""BentoML, with arrays as its API declares them: JSON numbers both ways."""
# pyright: reportMissingImports=false
# Why: it runs in the product's own environment.

from __future__ import annotations

import os
import sys
import tempfile
from typing import Annotated

import bentoml
import numpy as np
from bentoml.validators import DType

from .jobs import REPEATS

Tensor = Annotated[np.ndarray, DType("float32")]


@bentoml.service(workers=1, traffic={"timeout": 300})
class Tile:
    """One worker that tiles."""

    @bentoml.api
    def tile(self, x: Tensor) -> Tensor:
        return np.tile(x, REPEATS)


if __name__ == "__main__":
    os.environ.update(BENTOML_HOME=tempfile.mkdtemp(), BENTOML_DO_NOT_TRACK="True")
    program = os.path.join(os.path.dirname(sys.executable), "bentoml")  # noqa: PTH118, PTH120 # pathlib would follow the link
    service = "benchmarks.peers.serve_bentoml:Tile"
    os.execv(program, [program, "serve", service, "--port", sys.argv[1], "--host", "127.0.0.1"])
