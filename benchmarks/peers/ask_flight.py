"""Arrow Flight's Python client: one DoExchange for each Tile, as there is no smaller call with a tensor both ways."""
# pyright: reportMissingImports=false
# Why: it runs in the product's own environment.

from __future__ import annotations

import json
import sys

import pyarrow as pa
import pyarrow.flight as flight

from .ask import Array, Call, converse


def connect() -> Call:
    client = flight.connect(f"grpc://127.0.0.1:{sys.argv[1]}")

    def call(x: Array) -> Array:
        batch = pa.record_batch([pa.array(x.reshape(-1))], ["x"])
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(json.dumps(x.shape)))
        with writer:
            writer.begin(batch.schema)
            writer.write_batch(batch)
            writer.done_writing()
            return reader.read_chunk().data.column(0).to_numpy()

    return call


if __name__ == "__main__":
    converse("Arrow Flight", connect)
