"""NVIDIA GPUs through CuPy: `backend.py` owns a device, `pinned.py` its host memory, `compute.py` launches our kernels.

A kernel call is planned in plain Python (`planning.py` chooses; `tiling.py`, `resampling.py` and `staging.py` lay it
out) and compiled by NVRTC from the .cu files beside them (`variants.py`).
"""
