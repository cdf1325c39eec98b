"""A network of the size of ResNet-50 on the GPU, beside torch, in one run: float32 without TensorFloat-32.

    python -m benchmarks.gpu_models
    python -m benchmarks.gpu_models --batches 1,32 --profile

A call takes a batch from host memory and brings the result back; weights are on the device already. "ours" is captured
as a CUDA graph, "by steps" is not, and "products" is without cuDNN, too. torch's network is torchvision's, with random
weights of its own. Needs CuPy, torch, torchvision, onnx and onnxruntime.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.onnx_models import inputs_of, network
from tensorpost.calls.model_calls import model_call
from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost_server.backends.base import Run
from tensorpost_server.backends.cuda.backend import CudaBackend
from tensorpost_server.backends.device_run import DeviceRun
from tensorpost_server.planning import Plan, make_device_plan

NAMES = ("resnet50", "squeezenet", "shufflenet", "densenet121")


def batched(name: str, batch: int) -> Any:
    """The network for a batch of this size."""
    from onnx import numpy_helper

    proto = network(name)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    for each in proto.graph.initializer:
        values = numpy_helper.to_array(each)
        if values.dtype == np.int64 and values.size and values.flat[0] == 1:
            each.CopyFrom(numpy_helper.from_array(np.concatenate([[batch], values[1:]]), each.name))
    for value in (*proto.graph.output, *proto.graph.value_info):
        value.type.tensor_type.ClearField("shape")
    return proto


def planned(proto: Any, x: dict[str, Any]) -> Plan:
    """The plan, whose weights are kept on the device."""
    document, arrays, *_ = model_call(proto.SerializeToString(), x, None)
    (name,) = x
    layouts = {key: Layout.row_major(data_type(array.dtype), array.shape) for key, array in arrays.items()}
    weights = {
        key: (layouts[key], np.ascontiguousarray(array).reshape(-1).view(np.uint8).data.toreadonly())
        for key, array in arrays.items()
        if key != name
    }
    graph = read_graph(document, {name: layouts[name]}, most_nodes=5000, weights=weights)
    plan = make_device_plan(graph, 1 << 20)
    assert plan is not None, "a node has no form on a device"
    return plan


def whole(run: Run, plan: Plan) -> bytes:
    """The output."""
    try:
        return b"".join([run.compute(index) for index in range(len(plan.slices))])
    finally:
        run.close()


def main() -> None:
    """Print a line for each network and batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--profile", action="store_true", help="print where the time of our ResNet-50 goes")
    options = parser.parse_args()
    torch: Any = importlib.import_module("torch")
    models: Any = importlib.import_module("torchvision").models
    onnxruntime: Any = importlib.import_module("onnxruntime")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    backend = CudaBackend()
    print(f"{backend.device}; {'without cuDNN' if backend.cudnn is None else f'cuDNN {backend.cudnn.version}'}")
    eager = models.resnet50().eval().cuda()
    compiled = torch.compile(eager)
    for name in NAMES:
        for batch in map(int, options.batches.split(",")):
            proto = batched(name, batch)
            x = inputs_of(proto)
            ((_, data),) = x.items()
            plan = planned(proto, x)
            block = [data.reshape(-1).view(np.uint8).data]

            def ours(plan: Plan = plan, block: Any = block) -> bytes:
                return whole(backend.start(plan, block), plan)

            def by_steps(plan: Plan = plan, block: Any = block) -> bytes:
                return whole(DeviceRun(backend, plan, block), plan)

            def products(by_steps: Callable[[], bytes] = by_steps) -> bytes:
                with patch.object(backend, "cudnn", None):
                    return by_steps()

            def by_torch(model: Any, data: Any = data) -> Any:
                with torch.inference_mode():
                    return model(torch.from_numpy(data).cuda()).cpu().numpy()

            ways: dict[str, Callable[[], Any]] = {"ours": ours, "by steps": by_steps, "products": products}
            if name == "resnet50":
                ways |= {"torch": lambda: by_torch(eager), "torch.compile": lambda: by_torch(compiled)}
            if batch == 1:
                session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
                (expected,) = session.run(None, x)
                for way in (ours, products):
                    found = np.frombuffer(way(), np.float32).reshape(expected.shape)
                    print(f"{name}: {np.abs(found - expected).max() / np.abs(expected).max():.1e} from ONNX Runtime")
            times: dict[str, list[float]] = {way: [] for way in ways}
            for call in ways.values():
                for _ in range(5):
                    call()
            for _ in range(options.rounds):
                for way, call in ways.items():
                    begin = time.perf_counter()
                    call()
                    times[way].append(time.perf_counter() - begin)
            texts = [f"{way} {statistics.median(each) * 1e3:.2f}" for way, each in times.items()]
            print(f"{name}, batch {batch}, {len(plan.steps)} steps, ms: {', '.join(texts)}", flush=True)
            if options.profile and name == "resnet50":
                _profile(backend, plan, block)
    backend.close()


def _profile(backend: Any, plan: Plan, block: list[Any]) -> None:
    """Print the time of the steps by form, each waited for."""
    spent, counts = dict[str, float](), Counter[str]()
    compute = backend.compute

    def timed(step: Any, inputs: Any, uploaded: Any) -> Any:
        begin = time.perf_counter()
        found = compute(step, inputs, uploaded)
        kind = type(step.form).__name__
        spent[kind] = spent.get(kind, 0.0) + time.perf_counter() - begin
        counts[kind] += 1
        return found

    with patch.object(backend, "compute", timed):
        run = DeviceRun(backend, plan, block)
        for index in range(len(plan.slices)):
            run.compute(index)
        run.close()
    print(", ".join([f"{kind}: {counts[kind]} in {took * 1e3:.2f} ms" for kind, took in spent.items()]))


if __name__ == "__main__":
    main()
