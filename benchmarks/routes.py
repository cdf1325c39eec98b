"""The first peer, as one writes it in a quarter of an hour: FastAPI, `await request.body()` and NumPy."""

from __future__ import annotations

import numpy as np
from fastapi import FastAPI, Request, Response

from .servers import READY
from .wire import picked

app = FastAPI()


@app.get(READY)
async def ready() -> dict[str, bool]:
    return {"ready": True}


@app.post("/tile")
async def tile(request: Request, shape: str, repeats: str) -> Response:
    x = np.frombuffer(await request.body(), np.float32).reshape([int(size) for size in shape.split(",")])
    y = np.tile(x, [int(count) for count in repeats.split(",")])
    return Response(y.tobytes(), media_type="application/octet-stream")


@app.post("/pick")
async def pick(request: Request) -> Response:
    x = np.frombuffer(await request.body(), np.float32)
    return Response(x[picked(x.size)].tobytes(), media_type="application/octet-stream")
