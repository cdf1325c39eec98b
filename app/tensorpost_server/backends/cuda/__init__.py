"""NVIDIA devices, through CuPy: our own kernels for Tile and Resample, compiled on the device's machine."""
