"""NVIDIA's PyTriton: Triton with a Python function behind it, batching off."""
# pyright: reportMissingImports=false
# Why: it runs in the product's own environment.

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np

from .jobs import REPEATS

# The interpreter inside PyTriton's wheel is an older 3.11 than most standard libraries it loads, whose locks ask for a
# method that its own locks lack. The Python lock of the same library has it.
REPAIR = """import threading
if not hasattr(threading.RLock(), "_recursion_count"):
    threading.RLock = threading._PyRLock
"""


def repair() -> None:
    """Put those lines before the model that PyTriton starts in its interpreter, in its own environment."""
    found = importlib.util.find_spec("pytriton")
    assert found is not None
    assert found.origin is not None
    for model in Path(found.origin).parent.rglob("model.py"):
        if not (text := model.read_text()).startswith(REPAIR):
            model.write_text(REPAIR + text)


def tile(requests: list[Any]) -> list[dict[str, Any]]:
    """Tile, request by request."""
    return [{"y": np.tile(request.data["x"], REPEATS)} for request in requests]


def main() -> None:
    """Serve until the process is ended."""
    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.triton import Triton, TritonConfig

    http, grpc = int(sys.argv[1]), int(sys.argv[2])
    config = TritonConfig(
        http_port=http, grpc_port=grpc, http_address="127.0.0.1", grpc_address="127.0.0.1", allow_metrics=False
    )
    x, y = (Tensor(name=name, dtype=np.float32, shape=(-1, -1, -1, -1)) for name in "xy")
    with Triton(config=config) as triton:
        triton.bind(model_name="tile", infer_func=tile, inputs=[x], outputs=[y], config=ModelConfig(batching=False))
        triton.serve()


if __name__ == "__main__":
    repair()
    main()
