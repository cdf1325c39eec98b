"""The largest calls of each family of operators: elements that read much, lines and outputs that are never cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.descriptors import operator_class
from tensorpost.onnx import OnnxNode
from tensorpost.values.operation import Operation

__all__ = ["LargestCall", "largest_calls"]

MEGA = 1 << 20
F32, F16, U8, I32, U32 = "FLOAT32", "FLOAT16", "UINT8", "INT32", "UINT32"


@dataclass(frozen=True)
class LargestCall:
    """A call that takes long on a processor.

    Attributes:
        name: the operator, and what makes it long.
        operation: the descriptor or node.
    """

    name: str
    operation: Operation

    def inputs(self) -> list[NDArray[np.uint8]]:
        """Bytes of each input: small whole numbers of its type."""
        random, made = np.random.default_rng(1), list[NDArray[np.uint8]]()
        for slot in self.operation.inputs:
            dtype = slot.layout.data_type.dtype
            count = -(-slot.layout.size_in_bytes // dtype.itemsize)
            block = random.integers(0, 4, min(count, MEGA)).astype(dtype)
            made.append(np.resize(block, count).view(np.uint8))
        return made


def tensor(data_type: str, *sizes: int) -> dict[str, Any]:
    """The document of a packed tensor."""
    return {"DataType": data_type, "Sizes": list(sizes)}


def largest_calls() -> Iterator[LargestCall]:
    """All of them, DirectML's first."""
    for words, fields in _directml():
        yield LargestCall(words, operator_class(words.split()[0]).completed(fields))
    for words, document in _onnx():
        yield LargestCall(words, OnnxNode.from_json({"op_type": words.split()[0], "opset": 20, **document}))


def _windows(taps: int) -> dict[str, Any]:
    return {"WindowSize": [taps, taps], "Strides": [1, 1], "StartPadding": [taps - 1] * 2, "EndPadding": [0, 0]}


def _directml() -> Iterator[tuple[str, dict[str, Any]]]:
    image, line, square = tensor(F32, 1, 1, 1500, 1500), tensor(F32, 1, 1, 1, 64 * MEGA), tensor(F32, 1, 1, 8192, 8192)
    halves, columns = tensor(F16, 1, 1, 1, 64 * MEGA), tensor(F32, 1, 1, 16 * MEGA, 4)
    along = {"Axis": 3}
    convolution = {"InputTensor": tensor(F32, 1, 1, 512, 512), "FilterTensor": tensor(F32, 1, 1, 300, 300)}
    yield "CONVOLUTION 300 x 300 taps", convolution
    yield "CONVOLUTION 1 x 1, 2048 channels", {
        "InputTensor": tensor(F32, 8, 2048, 64, 64), "FilterTensor": tensor(F32, 2048, 2048, 1, 1),
    }  # fmt: skip
    yield "CONVOLUTION 64 x 64 taps of 64 channels", {
        "InputTensor": tensor(F32, 1, 64, 256, 256), "FilterTensor": tensor(F32, 64, 64, 64, 64),
    }  # fmt: skip
    yield "CONVOLUTION_INTEGER 300 x 300 taps", {
        "InputTensor": tensor(U8, 1, 1, 512, 512), "FilterTensor": tensor(U8, 1, 1, 300, 300),
        "Strides": [1, 1], "Dilations": [1, 1], "StartPadding": [0, 0], "EndPadding": [0, 0], "GroupCount": 1,
    }  # fmt: skip
    yield "GEMM 6000", {"ATensor": tensor(F32, 1, 1, 6000, 6000), "BTensor": tensor(F32, 1, 1, 6000, 6000)}
    yield (
        "GEMM one row by 2^26",
        {"ATensor": tensor(F32, 1, 1, 4, 16 * MEGA), "BTensor": tensor(F32, 1, 1, 16 * MEGA, 4)},
    )
    yield "GEMM softmax", {
        "ATensor": tensor(F32, 1, 1, 6000, 2000), "BTensor": tensor(F32, 1, 1, 2000, 6000),
        "FusedActivation": {"Type": "ACTIVATION_SOFTMAX", "Desc": {}},
    }  # fmt: skip
    yield (
        "MATRIX_MULTIPLY_INTEGER 4000",
        {"ATensor": tensor(U8, 1, 1, 4000, 4000), "BTensor": tensor(U8, 1, 1, 4000, 4000)},
    )
    for name in ("MAX_POOLING", "AVERAGE_POOLING", "LP_POOLING"):
        more = {"P": 3} if name == "LP_POOLING" else {}
        yield f"{name} 1500 x 1500", {"InputTensor": image, **_windows(1500), **more}
        yield f"{name} 31 x 31", {"InputTensor": tensor(F32, 1, 4, 2048, 2048), **_windows(31), **more}
    yield "MAX_POOLING2 with places", {
        "InputTensor": image, **_windows(1500), "Dilations": [1, 1],
        "OutputIndicesTensor": tensor(U32, 1, 1, 1500, 1500),
    }  # fmt: skip
    yield "MAX_POOLING_GRAD", {
        "InputTensor": tensor(F32, 1, 1, 1500, 1500), "InputGradientTensor": tensor(F32, 1, 1, 1500, 1500),
        "OutputGradientTensor": tensor(F32, 1, 1, 1500, 1500), **_windows(101), "StartPadding": [100, 100],
        "Dilations": [1, 1],
    }  # fmt: skip
    yield "AVERAGE_POOLING_GRAD", {
        "InputGradientTensor": image, "OutputGradientTensor": image, **_windows(1001), "StartPadding": [1000, 1000],
    }  # fmt: skip
    for name in ("CUMULATIVE_SUMMATION", "CUMULATIVE_PRODUCT"):
        yield f"{name} of one line", {"InputTensor": line, **along}
    yield "CUMULATIVE_SUMMATION of one line of FLOAT16", {"InputTensor": halves, **along}
    yield "CUMULATIVE_SUMMATION of columns", {"InputTensor": columns, "Axis": 2}
    for function in ("SUM", "L2", "LOG_SUM_EXP", "MULTIPLY", "ARGMAX", "MAX"):
        yield f"REDUCE {function} of one line", {"InputTensor": line, "Function": function, "Axes": [3]}
    yield "REDUCE SUM of columns", {"InputTensor": columns, "Function": "SUM", "Axes": [2]}
    yield "REDUCE SUM of FLOAT16", {"InputTensor": halves, "Function": "SUM", "Axes": [3]}
    yield "ARGMAX of columns", {"InputTensor": columns, "Axes": [2]}
    yield "TOP_K of one line", {"InputTensor": line, "Axis": 3, "K": 1000}
    yield "ACTIVATION_SOFTMAX1 of one line", {"InputTensor": line, "Axes": [3]}
    yield "ACTIVATION_HARDMAX1 of one line", {"InputTensor": line, "Axes": [3]}
    normal = {"NormalizeVariance": True, "Epsilon": 0.1}
    yield "MEAN_VARIANCE_NORMALIZATION1 of one line", {"InputTensor": line, "Axes": [3], **normal}
    yield "MEAN_VARIANCE_NORMALIZATION1 of columns", {"InputTensor": columns, "Axes": [2], **normal}
    yield "LP_NORMALIZATION of one line", {"InputTensor": line, "Axis": 3, "Epsilon": 0.1, "P": 2}
    factors = {"Alpha": 0.1, "Beta": 0.75, "Bias": 1.0}
    yield "LOCAL_RESPONSE_NORMALIZATION", {
        "InputTensor": tensor(F32, 1, 1, 2048, 2048), "CrossChannel": False, "LocalSize": 99, **factors,
    }  # fmt: skip
    gradient = tensor(F32, 1, 1, 4096, 4096)
    yield "LOCAL_RESPONSE_NORMALIZATION_GRAD", {
        "InputTensor": gradient, "InputGradientTensor": gradient, "CrossChannel": False, "LocalSize": 99, **factors,
    }  # fmt: skip
    indices = tensor(U32, 1, 1, 1, 32 * MEGA)
    yield "GATHER", {"InputTensor": line, "IndicesTensor": indices, "Axis": 3, "IndexDimensions": 1}
    yield "GATHER_ELEMENTS", {"InputTensor": line, "IndicesTensor": indices, "Axis": 3}
    yield (
        "SCATTER_ELEMENTS",
        {"InputTensor": line, "IndicesTensor": indices, "UpdatesTensor": tensor(F32, 1, 1, 1, 32 * MEGA), "Axis": 3},
    )
    yield "SCATTER_ND", {
        "InputTensor": line, "IndicesTensor": tensor(U32, 1, 1, 16 * MEGA, 1),
        "UpdatesTensor": tensor(F32, 1, 1, 1, 16 * MEGA),
        "InputDimensionCount": 1, "IndicesDimensionCount": 2,
    }  # fmt: skip
    yield (
        "ONE_HOT",
        {
            "IndicesTensor": tensor(U32, 1, 1, 65536, 1),
            "ValuesTensor": tensor(F32, 1, 1, 1, 2),
            "OutputTensor": tensor(F32, 1, 1, 65536, 1000),
            "Axis": 3,
        },
    )
    yield "NONZERO_COORDINATES", {"InputTensor": line}
    yield (
        "MAX_UNPOOLING",
        {"InputTensor": square, "IndicesTensor": tensor(U32, 1, 1, 8192, 8192), "OutputTensor": square},
    )
    regions = {"ROITensor": tensor(F32, 1, 1, 64, 4), "BatchIndicesTensor": tensor(U32, 1, 1, 1, 64)}
    samples = {
        "MinimumSamplesPerOutput": 200,
        "MaximumSamplesPerOutput": 200,
        "ReductionFunction": "AVERAGE",
        "InterpolationMode": "LINEAR",
        "OutOfBoundsInputValue": 0,
    }
    yield "ROI_POOLING", {
        "InputTensor": tensor(F32, 1, 64, 512, 512), "ROITensor": tensor(F32, 1, 1, 64, 5), "SpatialScale": 100,
        "PooledSize": {"Width": 2, "Height": 2},
    }  # fmt: skip
    yield "ROI_ALIGN", {
        "InputTensor": tensor(F32, 1, 64, 256, 256), **regions, **samples, "OutputTensor": tensor(F32, 64, 64, 4, 4),
        "SpatialScaleX": 50, "SpatialScaleY": 50,
    }  # fmt: skip
    yield "LSTM", {
        "InputTensor": tensor(F32, 1, 200, 256, 1024), "WeightTensor": tensor(F32, 1, 1, 8192, 1024),
        "RecurrenceTensor": tensor(F32, 1, 1, 8192, 2048), "Direction": "FORWARD",
        "OutputSequenceTensor": tensor(F32, 200, 1, 256, 2048),
        "ActivationDescs": [{"Type": f"ACTIVATION_{name}", "Desc": {}} for name in ("SIGMOID", "TANH", "TANH")],
    }  # fmt: skip
    heads = tensor(F32, 1, 8192, 1024)
    yield "MULTIHEAD_ATTENTION", {
        "QueryTensor": heads, "KeyTensor": heads, "ValueTensor": heads, "HeadCount": 2, "Scale": 1.0,
    }  # fmt: skip
    yield "ADAM_OPTIMIZER", {
        "InputParametersTensor": line, "InputFirstMomentTensor": line, "InputSecondMomentTensor": line,
        "GradientTensor": line, "TrainingStepTensor": tensor(U32, 1, 1, 1, 1), "LearningRate": 0.1, "Beta1": 0.9,
        "Beta2": 0.9, "Epsilon": 0.1,
    }  # fmt: skip
    channel, activations = tensor(F32, 1, 64, 1, 1), tensor(F32, 16, 64, 256, 128)
    yield "BATCH_NORMALIZATION_TRAINING", {
        "InputTensor": activations, "ScaleTensor": channel, "BiasTensor": channel, "Epsilon": 0.1,
    }  # fmt: skip
    yield "BATCH_NORMALIZATION_GRAD", {
        "InputTensor": activations, "InputGradientTensor": activations, "MeanTensor": channel,
        "VarianceTensor": channel, "ScaleTensor": channel, "Epsilon": 0.1,
    }  # fmt: skip
    yield "DYNAMIC_QUANTIZE_LINEAR", {"InputTensor": line, "OutputTensor": tensor(U8, 1, 1, 1, 64 * MEGA)}
    yield "QUANTIZE of blocks to 4 bits", {
        "InputTensor": square, "QuantizationType": "SCALE", "QuantizationTensors": [tensor(F32, 1, 1, 8192, 256)],
        "OutputTensor": tensor("UINT4", 1, 1, 8192, 8192),
    }  # fmt: skip
    yield "FOLD", {
        "InputTensor": tensor(F32, 1, 4096, 16129), "OutputTensor": tensor(F32, 1, 1, 190, 190),
        "WindowSizes": [64, 64],
        "Strides": [1, 1], "Dilations": [1, 1], "StartPadding": [0, 0], "EndPadding": [0, 0],
    }  # fmt: skip
    yield "UNFOLD", {
        "InputTensor": tensor(F32, 1, 1, 190, 190), "WindowSizes": [64, 64],
        "Strides": [1, 1], "Dilations": [1, 1], "StartPadding": [0, 0], "EndPadding": [0, 0],
    }  # fmt: skip
    yield (
        "RANDOM_GENERATOR",
        {"InputStateTensor": tensor(U32, 1, 1, 1, 6), "OutputTensor": tensor(U32, 1, 1, 1, 64 * MEGA)},
    )
    yield (
        "DIAGONAL_MATRIX1",
        {"OutputTensor": square, "ValueDataType": F32, "Value": 1, "DiagonalFillBegin": 0, "DiagonalFillEnd": 1},
    )
    yield "FILL_VALUE_SEQUENCE", {"OutputTensor": line, "ValueDataType": F32, "ValueStart": 1, "ValueDelta": 1}
    yield "PADDING of 6 reflected dimensions", {
        "InputTensor": tensor(F32, 4, 4, 4, 4, 4, 4), "PaddingMode": "REFLECTION", "StartPadding": [8] * 6,
        "EndPadding": [8] * 6,
    }  # fmt: skip
    yield "TILE", {"InputTensor": tensor(U8, 1, 1, 1, 3), "Repeats": [1, 1, 1, 50 * MEGA]}
    yield "ELEMENT_WISE_POW", {"InputTensor": line, "ExponentTensor": line}
    yield "CAST", {"InputTensor": line, "OutputTensor": halves}
    yield "RESAMPLE3 of one element", {
        "InputTensor": tensor(F32, 1, 1, 1, 8 * MEGA), "OutputTensor": tensor(F32, 1, 1, 1, 1),
        "InterpolationMode": "LINEAR", "RoundingDirection": "DECREASING", "Antialiased": True,
        "Scales": [1, 1, 1, 1 / (8 * MEGA)],
    }  # fmt: skip
    yield "RESAMPLE1 cubic, wide", {
        "InputTensor": tensor(F32, 1, 1, 2048, 2048), "OutputTensor": tensor(F32, 1, 1, 8192, 8192),
        "InterpolationMode": "LINEAR", "Scales": [1, 1, 4, 4],
    }  # fmt: skip


def _onnx() -> Iterator[tuple[str, dict[str, Any]]]:
    line = {"data_type": "float", "shape": [64 * MEGA]}
    yield "CumSum of one line", {"inputs": {"x": line, "axis": 0}}
    yield "ReduceSum dropped", {"inputs": {"data": line, "axes": [0]}, "attributes": {"keepdims": 0}}
    yield (
        "MatMul 6000",
        {
            "inputs": {
                "A": {"data_type": "float", "shape": [6000, 6000]},
                "B": {"data_type": "float", "shape": [6000, 6000]},
            }
        },
    )
    yield (
        "MatMulInteger 3000",
        {
            "inputs": {
                "A": {"data_type": "uint8", "shape": [3000, 3000]},
                "B": {"data_type": "uint8", "shape": [3000, 3000]},
            }
        },
    )
    yield (
        "MatMul of int64",
        {
            "inputs": {
                "A": {"data_type": "int64", "shape": [2000, 2000]},
                "B": {"data_type": "int64", "shape": [2000, 2000]},
            }
        },
    )
    yield "DynamicQuantizeLinear", {"inputs": {"x": line}}
    yield "GatherND", {"inputs": {"data": line, "indices": {"data_type": "int64", "shape": [16 * MEGA, 1]}}}
    yield "ScatterElements add", {
        "inputs": {
            "data": line, "indices": {"data_type": "int64", "shape": [16 * MEGA]},
            "updates": {"data_type": "float", "shape": [16 * MEGA]},
        },
        "attributes": {"reduction": "add"},
    }  # fmt: skip
    yield "TopK of one line", {"inputs": {"X": line, "K": [1000]}}
    yield (
        "Resize",
        {
            "inputs": {"X": {"data_type": "float", "shape": [1, 1, 2048, 2048]}, "scales": [1, 1, 4, 4]},
            "attributes": {"mode": "cubic"},
        },
    )
    yield "Gather", {"inputs": {"data": line, "indices": {"data_type": "int64", "shape": [16 * MEGA]}}}
    yield "EyeLike", {"inputs": {"input": {"data_type": "float", "shape": [8192, 8192]}}}
