"""The forms in which tensors travel: frames, npy, JSON and pictures."""
