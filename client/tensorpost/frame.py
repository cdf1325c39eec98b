"""Heads and buffers to bytes and back: the native frame. The other forms, npy and plain JSON, are re-exported here."""

from .bodies.frame import *  # noqa: F403 # the public name of what is in bodies/
