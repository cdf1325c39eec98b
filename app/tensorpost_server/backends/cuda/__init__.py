"""NVIDIA GPUs through CuPy. `backend.py` owns a device, `staging.py` its host memory; `compute.py` computes."""
