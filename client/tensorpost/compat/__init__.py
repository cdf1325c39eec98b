"""The operations that resize as other libraries do: PyTorch, OpenCV, Pillow, SciPy and WebNN.

Each function takes the arguments of the library's own and returns what `Client.run` sends: a DirectML descriptor, or
an ONNX node where that is nearer. It needs the array's dtype and shape only, and none of the libraries. What a library
does and this project cannot is refused with the reason; nothing is replaced by something similar.

Three rules hold for all of them:

* Nearest picks the element that the library's formula picks in exact arithmetic, checked at every index when the
  descriptor is made. The libraries compute the same formula in floating point, where a coordinate that should be a
  whole number can fall just below it; at those few indices they pick the neighbour.
* PyTorch computes linear coordinates in float32, as RESAMPLE2 does, and WebNN's tests allow for that. OpenCV, Pillow
  and SciPy compute them in float64; for those it is ONNX Resize, whose coordinates are exact here.
* Linear and cubic results of integer types are truncated toward zero here, once, as DirectML and ONNX Runtime do. Where
  a library rounds after each axis, ONNX's antialias does so too, and is what is sent.

`docs/compat.md` has a table of all that is covered, with the differences that were measured.
"""

from __future__ import annotations

from .opencv import opencv_resize
from .pillow import pillow_resize
from .scipy import scipy_zoom
from .torch import torch_interpolate
from .webnn import webnn_resample2d

__all__ = ["opencv_resize", "pillow_resize", "scipy_zoom", "torch_interpolate", "webnn_resample2d"]
