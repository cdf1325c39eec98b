"""Where answers differ from DirectML's by more than rounding, with the reason as far as it is known."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DEVIATIONS", "UNITS"]

UNITS = 8
"""Of the last place, of the larger of two numbers: what counts as rounding."""

_INFINITE = "LINEAR beside an infinity: DirectML blends as `a + (b - a) * t`, which is NaN; ours is a sum of products"
_INTEGERS = "INT8 and UINT8: DirectML's LINEAR differs by a unit or more; ours follows the page"
DEVIATIONS: Mapping[str, str] = {
    "ACTIVATION_GELU": "DirectML approximates erf to about 3e-7; ours is exact to rounding, as the page's formula",
    "CAST": "the page defines no conversion: DirectML saturates integers that do not fit, ours keep their low bits",
    "CONVOLUTION": (
        "sums of FLOAT16 are rounded toward zero; where sums cancel, their order shows; an infinity times an element "
        "of the padding is NaN; OutputPadding is plain zeros, without the bias that ours add"
    ),
    "ELEMENT_WISE_DIVIDE": "integers divided by zero, which no page defines",
    "ELEMENT_WISE_IDENTITY": "ScaleBias of integers: DirectML computes in FLOAT32, ours in FLOAT64",
    "ELEMENT_WISE_ABS": "ScaleBias of integers, as ELEMENT_WISE_IDENTITY",
    "ELEMENT_WISE_CLIP": "ScaleBias of integers, as ELEMENT_WISE_IDENTITY",
    "GEMM": "a fused ACTIVATION_GELU; where sums cancel, their order shows",
    "RESAMPLE": f"{_INTEGERS}. {_INFINITE}",
    "RESAMPLE1": f"{_INTEGERS}. {_INFINITE}",
    "RESAMPLE2": f"{_INTEGERS}. {_INFINITE}",
    "RESAMPLE3": f"Antialiased: DirectML's filter is not published. {_INTEGERS}. {_INFINITE}",
    "RESAMPLE_GRAD": "where sums cancel, their order shows",
    "RESAMPLE_GRAD1": "where sums cancel, their order shows; an infinity times a weight of zero is NaN",
    "TOP_K1": "NaN: DirectML passes it over, ours count it as the largest, as ONNX's TopK",
    "UPSAMPLE_2D": f"{_INFINITE}. Where two elements cancel, their order shows",
}
