"""Every method of KServe's clients against a server: `python kserve_calls.py URL GRPC_PORT CODE`; see test_kserve.py.

CODE is what the page shows: it has numpy as `np` and an array `x`, and may await. Prints as JSON what came back from
the other calls; test_kserve.py compares it.
"""
# pyright: reportMissingImports=false
# Why: it runs in an environment of its own, which has kserve and nothing of ours.

import ast
import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

ARRAYS = {
    "FP32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "FP16": np.array([[1, -0.5]], np.float16),
    "INT64": np.array([[-(2**40)], [7]]),
    "BOOL": np.array([[True, False]]),
    "BYTES": np.array([["a", "été"]], object),
}


def request(model: str, datatype: str, *, binary: bool, wanted: bool | None) -> InferRequest:
    array = ARRAYS[datatype]
    tensor = InferInput("input", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    made = InferRequest(model_name=model, infer_inputs=[tensor], parameters={"repeats": "[1,2]"}, request_id="7")
    if wanted is not None:
        made.request_outputs = [RequestedOutput("output", parameters={"binary_data": wanted})]
    return made


async def refusal(call: Any) -> str:
    try:
        await call
    except Exception as error:  # noqa: BLE001 # each client has exceptions of its own
        return str(error)
    return "was let through"


async def main(url: str, port: str) -> dict[str, Any]:
    rest, grpc = InferenceRESTClient(RESTConfig(protocol="v2")), InferenceGRPCClient(f"127.0.0.1:{port}")
    found: list[Any] = []
    for datatype in ARRAYS:
        for binary in (True, False):
            for wanted in (None, True, False):
                if datatype == "FP16" and not (binary and wanted):
                    continue  # which JSON has no numbers for
                sent = request("onnx.tile", datatype, binary=binary, wanted=wanted)
                answer = await rest.infer(url, sent, model_name="onnx.tile")
                assert (answer.id, answer.model_name) == ("7", "onnx.tile")
                found.append([datatype, answer.outputs[0].as_numpy().tolist()])
        if datatype != "FP16":
            answer = await grpc.infer(request("onnx.tile", datatype, binary=True, wanted=None))
            found.append([datatype, answer.outputs[0].as_numpy().tolist()])
    states = [await rest.is_server_live(url), await rest.is_server_ready(url), await rest.is_model_ready(url, "tile"),
              await grpc.is_server_live(), await grpc.is_server_ready(), await grpc.is_model_ready("tile"),
              await rest.is_model_ready(url, "tlie")]  # fmt: skip
    stored: list[Any] = []
    for client in (rest, grpc):
        tensor = InferInput("x", [2, 3], "FP32")
        tensor.set_data_from_numpy(ARRAYS["FP32"], binary_data=True)
        sent = InferRequest(model_name="negative", infer_inputs=[tensor])
        answer = await (rest.infer(url, sent, model_name="negative") if client is rest else grpc.infer(sent))
        stored.append(answer.outputs[0].as_numpy().reshape(2, 3).tolist())
    explanation = await refusal(rest.explain(url, "tile", {}))
    wrong = request("tlie", "FP32", binary=True, wanted=None)
    refusals = [await refusal(rest.infer(url, wrong, model_name="tlie")), await refusal(grpc.infer(wrong))]
    await rest.close()
    await grpc.close()
    return {"arrays": found, "states": states, "refusals": refusals, "explanation": explanation, "stored": stored}


async def page(code: str) -> None:
    names = {"np": np, "x": ARRAYS["FP32"]}
    await eval(compile(code, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    await names["client"].close()


if __name__ == "__main__":
    asyncio.run(page(sys.argv[3]))
    print(json.dumps(asyncio.run(main(*sys.argv[1:3])), default=bytes.decode))  # noqa: T201 # its answer
