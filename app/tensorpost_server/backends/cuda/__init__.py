"""NVIDIA GPUs through CuPy: `backend.py` owns a device, `pinned.py` its host memory, `compute.py` launches our kernels.

A form's box is planned in plain Python: `launch_plan.py` chooses, `copy_kernels.py`, `row_kernels.py`,
`transpose_kernels.py`, `pointwise_kernels.py`, `resample_kernels.py` and `staged_resample.py` make the launches.
Kernels are the .cu files beside them, compiled by NVRTC (`variants.py`).
"""
