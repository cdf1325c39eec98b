"""Arrow Flight: a service that tiles what is exchanged with it."""
# pyright: reportMissingImports=false
# Why: it runs in the product's own environment.

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from .jobs import REPEATS


class Tile(flight.FlightServerBase):
    """One record batch in, one out; the command says the tensor's shape."""

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        x = reader.read_chunk().data.column(0).to_numpy().reshape(json.loads(descriptor.command))
        batch = pa.record_batch([pa.array(np.tile(x, REPEATS).reshape(-1))], ["y"])
        writer.begin(batch.schema)
        writer.write_batch(batch)


if __name__ == "__main__":
    Tile(f"grpc://127.0.0.1:{sys.argv[1]}").serve()
