"""Ray Serve: a deployment with a FastAPI route that takes and gives raw bytes."""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# Why: it runs in the product's own environment, and without that nobody knows what its decorators return.

import signal
import sys
import threading

import numpy as np
import ray
from fastapi import FastAPI, Request
from fastapi.responses import Response
from ray import serve

from .jobs import REPEATS

app = FastAPI()


@serve.deployment(num_replicas=1, max_ongoing_requests=100, ray_actor_options={"num_cpus": 0.5})
@serve.ingress(app)
class Tile:
    """One replica that tiles."""

    @app.post("/tile")
    async def tile(self, request: Request) -> Response:
        shape = [int(size) for size in request.headers["x-shape"].split(",")]
        x = np.frombuffer(await request.body(), np.float32).reshape(shape)
        return Response(np.tile(x, REPEATS).tobytes(), media_type="application/octet-stream")


def main() -> None:
    """Serve until we are told to end; then take everything along that Ray started."""
    ended = threading.Event()
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=2 << 30, _node_ip_address="127.0.0.1")
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(sys.argv[1])}, logging_config={"enable_access_log": False}
    )
    serve.run(Tile.bind())
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
