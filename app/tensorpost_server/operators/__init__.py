"""What each operator means on arrays: one file per family, under the same name as its descriptors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensorpost import descriptors as dml
from tensorpost.onnx import OnnxNode

from .base import Box, Kernel
from .onnx import kernel_for_onnx
from .resample import kernel_for_resample
from .tile import kernel_for_tile

__all__ = ["KERNELS", "Box", "Kernel", "kernel_for"]

KERNELS: Mapping[type, Callable[[Any], Kernel]] = {
    dml.TileOperatorDesc: kernel_for_tile,
    dml.Upsample2DOperatorDesc: kernel_for_resample,
    dml.ResampleOperatorDesc: kernel_for_resample,
    dml.Resample1OperatorDesc: kernel_for_resample,
    dml.Resample2OperatorDesc: kernel_for_resample,
    dml.Resample3OperatorDesc: kernel_for_resample,
    dml.ResampleGradOperatorDesc: kernel_for_resample,
    dml.ResampleGrad1OperatorDesc: kernel_for_resample,
    OnnxNode: kernel_for_onnx,
}


def kernel_for(request: object) -> Kernel:
    """The kernel of a descriptor or node.

    Raises:
        KeyError: a class without a row in `KERNELS`; a test holds the table against the contract's list.
    """
    return KERNELS[type(request)](request)
